"""The work of a batch vertex, on the driver: a query turns a batch into messages, a sink writes it.

**Queries** (SQL, DataFrame functions) are planned by Spark and run on its workers. Spark keeps the
result until the batch is settled, so the rows that were checked are the rows that are published. A
query that can never work is refused before the pipeline runs.

**Writes** (Spark sinks) have one task, in the order of the messages. So a failed write leaves
nothing behind if the format writes a task atomically: databases do so with a transaction, and Spark
does so with files.

**Calls.** ``limits.callTimeout`` applies to each attempt at a query or a write. After that time,
the attempt's Spark jobs are cancelled, which ends it wherever Spark works: in a shuffle, a user's
function on a worker, a database that does not answer. The Python code of a DataFrame function runs
on the driver and cannot be safely interrupted; if it returns too late, the attempt fails then. A
write that succeeds too late counts as successful, because a retry would write it twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import count
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType
from typing_extensions import override

from ebbflow.connectors.plans import SparkSink
from ebbflow.connectors.spark.vertex_session import find_format, root_cause
from ebbflow.domain.errors import CallTimeout, ContractViolation, MessageTooLarge, SetupError
from ebbflow.engine.isolation import Trouble
from ebbflow.runtime.plan import DataFrameMap, SinksPlan, SqlMap, VertexPlan
from ebbflow.runtime.worker import resolve_code
from ebbflow.spark.batch.settling import null_value
from ebbflow.spark.batch.window import COLUMNS

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, SparkSession

VIEW = "messages"
_NACKS = {
    "nack": "boolean",
    "nack_delay": "bigint",
    "nack_max_deliveries": "bigint",
    "nack_reason": "string",
}
_FIX = (
    "Return a column 'value' of type STRING or BINARY, for example to_json(struct(*)), and if you "
    "like 'id', 'keys', 'tags', 'event_time' and 'headers'."
)
_LOOK_EVERY = 1.0
# Rare enough to cost nothing, frequent enough to end a call soon after its limit.
_LOOKS = 4
_LONG, _REPORT_EVERY = 1.0, 2.0
Report = Callable[[float | None], None]
"""Receives the seconds that a long attempt has been running, and ``None`` when it ends."""
_PLACE, _CORRUPT = "__place", "__corrupt"
_ATTEMPTS = count()


class BatchWork:
    """The work of one batch vertex. One thread uses it.

    ``traced`` if each row of the result names the message that it was made from.
    """

    traced = False

    @property
    def result(self) -> DataFrame | None:
        """The rows from all attempts since the last ``forget``; ``None`` for no rows."""
        return None

    def check(self) -> None:
        """Raises ``SetupError`` if the work cannot succeed with any messages."""
        raise NotImplementedError

    def attempt(self, rows: DataFrame, call: BatchCall) -> None:
        """Processes some rows; forwards exceptions of Spark, a database or user code."""
        raise NotImplementedError

    def explain_failure(self, error: Exception) -> Trouble:
        """Returns why an attempt failed, without any secrets."""
        return root_cause(error)

    def suspects(self, rows: DataFrame) -> list[int]:
        """Returns the places of rows that may have failed an attempt, if they can be found."""
        return []

    def forget(self) -> None:
        """Drops the results of the attempts once the batch is settled or abandoned."""


def messages(rows: DataFrame) -> DataFrame:
    """Returns the messages with the columns for queries."""
    return rows.selectExpr(
        "id",
        "coalesce(keys, CAST(array() AS ARRAY<STRING>)) AS keys",
        "value",
        "event_time",
        "coalesce(headers, CAST(map() AS MAP<STRING, STRING>)) AS headers",
        "coalesce(metadata, CAST(map() AS MAP<STRING, MAP<STRING, BINARY>>)) AS metadata",
        "deliveries",
        "nack_reason",
    )


def no_messages(spark: SparkSession) -> DataFrame:
    """Returns a DataFrame without messages, to check whether a query can work."""
    nothing = (f"CAST(NULL AS {kind}) AS {name}" for name, kind in COLUMNS.items())
    return spark.range(0).selectExpr(*nothing)


class Query(BatchWork):
    """The query of one vertex, and its results for the current batch."""

    def __init__(self, spark: SparkSession, plan: VertexPlan) -> None:
        self._spark = spark
        self._vertex = plan.vertex
        self._largest = plan.largest
        self._sql = plan.role.query if isinstance(plan.role, SqlMap) else None
        self._code = plan.role.code if isinstance(plan.role, DataFrameMap) else None
        self._search = plan.run.search
        self._function: Callable[[DataFrame], Any] | None = None
        self._kept: list[DataFrame] = []
        self._filled: list[DataFrame] = []

    @override
    def check(self) -> None:
        try:
            self._apply(no_messages(self._spark))
        except ContractViolation as error:
            raise SetupError(str(error)) from None
        except Exception as error:
            raise self._refusal(error) from None

    def _refusal(self, error: Exception) -> SetupError:
        failure = root_cause(error)
        if self._sql is not None:
            return SetupError(
                f"The SQL of {self._vertex} cannot work: {failure.sentence}", "Correct it."
            )
        return SetupError(
            f"The DataFrame function of {self._vertex} raised {failure.kind}: {failure.sentence}",
            "It was called with a DataFrame without rows; return one without rows then.",
        )

    @override
    def attempt(self, rows: DataFrame, call: BatchCall) -> None:
        made = self._apply(rows)
        call.check_time()  # a DataFrame function may return too late
        kept = made.persist()
        try:
            count, nulls, longest = kept.selectExpr(
                "count(*)", "count_if(value IS NULL)", "max(octet_length(value))"
            ).first()  # type: ignore[misc]
            self._check_aggregates(nulls, longest or 0)
        except BaseException:
            kept.unpersist()
            raise
        self._kept.append(kept)
        self._filled += [kept] if count else []

    def _check_aggregates(self, nulls: int, longest: int) -> None:
        """Refuses bad rows that name no input; settling handles rows that do."""
        if not self.traced and nulls:
            raise null_value(self._vertex)
        if not self.traced and longest > self._largest:
            raise MessageTooLarge(longest, self._largest)

    @property
    @override
    def result(self) -> DataFrame | None:
        return reduce(DataFrame.unionByName, self._filled) if self._filled else None

    @override
    def forget(self) -> None:
        for kept in self._kept:
            kept.unpersist()
        self._kept, self._filled = [], []

    def _apply(self, rows: DataFrame) -> DataFrame:
        batch = messages(rows)
        if self._sql is not None:
            batch.createOrReplaceTempView(VIEW)
            made = self._spark.sql(self._sql)
        else:
            made = self._call_function(batch)
        self.traced = "id" in made.columns
        return normalise_columns(self._vertex, made)

    def _call_function(self, batch: DataFrame) -> DataFrame:
        if self._function is None:
            assert self._code is not None
            self._function = resolve_code(self._code, self._search)
        made = self._function(batch)
        if not isinstance(made, DataFrame):
            what = f"returned {type(made).__name__}, not a DataFrame"
            raise ContractViolation(self._vertex, what, fix=_FIX)
        return made


def normalise_columns(vertex: str, made: DataFrame) -> DataFrame:
    """Returns the known columns of a result, each cast to its type."""
    types = {field.name: field.dataType for field in made.schema}
    if "value" not in types or not isinstance(types["value"], StringType | BinaryType):
        what = f"returned {made.schema.simpleString()}"
        raise ContractViolation(vertex, what, fix=_FIX)
    if "nack" in types and "id" not in types:
        what = "returned a column 'nack' without 'id'"
        raise ContractViolation(vertex, what, fix="Return the id of the message to nack as well.")
    made = made.select(*(f"`{name}`" for name in types))
    columns = [F.col("value").cast("binary").alias("value")]
    for name, column in _optional(types).items():
        columns.append(column.alias(name))
    return made.select(*columns)


def _optional(types: dict[str, DataType]) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    if "id" in types:
        columns["id"] = F.col("id").cast("string")
    for name in ("keys", "tags"):
        if name in types:
            columns[name] = _texts(name, types[name])
    if "event_time" in types:
        columns["event_time"] = F.col("event_time").cast("timestamp")
    if isinstance(types.get("headers"), MapType):
        headers = F.col("headers").cast("map<string, string>")
        columns["headers"] = F.map_filter(headers, lambda _, value: value.isNotNull())
    if "nack" in types:
        columns |= {name: F.col(name).cast(kind) for name, kind in _NACKS.items() if name in types}
    return columns


def _texts(name: str, kind: DataType) -> Column:
    """Returns a column of lists of texts without nulls; a single text becomes a list."""
    column = F.col(name)
    if not isinstance(kind, ArrayType):
        column = F.when(column.isNotNull(), F.array(column))
    return F.array_compact(column.cast("array<string>"))


class Write(BatchWork):
    """Writes the batches of one sink; it has no rows to publish."""

    def __init__(self, spark: SparkSession, plan: VertexPlan) -> None:
        assert isinstance(plan.role, SinksPlan)
        assert isinstance(plan.role.primary, SparkSink)
        self._spark = spark
        self._vertex = plan.vertex
        self._most = plan.calls.batch_size
        self._settings = plan.role.primary.settings

    @override
    def check(self) -> None:
        find_format(self._spark, self._settings.format, self._vertex)
        try:
            parsed = self._parse(messages(no_messages(self._spark)))
        except Exception as error:
            raise SetupError(
                f"The schema of {self._vertex} cannot be used: {root_cause(error).sentence}",
                "Correct it.",
            ) from None
        for name, expression in self._settings.columns:
            try:
                parsed.select(F.expr(expression).alias(name))
            except Exception as error:
                raise SetupError(
                    f"Column {name} of {self._vertex} cannot be {expression!r}: "
                    f"{root_cause(error).sentence}",
                    "Correct it.",
                ) from None

    @override
    def attempt(self, rows: DataFrame, call: BatchCall) -> None:
        settings = self._settings
        ordered = rows.coalesce(1).sortWithinPartitions(_PLACE)
        parsed = self._parse(messages(ordered))
        writer = parsed.select(*self._columns()).write.format(settings.format.name)
        if settings.partition_by:
            writer = writer.partitionBy(*settings.partition_by)
        writer.mode(settings.mode).options(**self._options()).save()

    def _options(self) -> dict[str, str]:
        options = self._settings.format.reveal_options()
        if self._settings.format.name.lower() == "jdbc":
            # All rows in one JDBC batch, so that the row in its error is the row that failed.
            options = {"batchsize": str(self._most), **options}
        return options

    @override
    def explain_failure(self, error: Exception) -> Trouble:
        failure = root_cause(error)
        return replace(failure, text=self._settings.format.without_secrets(failure.text))

    @override
    def suspects(self, rows: DataFrame) -> list[int]:
        # Rows whose values do not match the schema.
        if self._settings.schema is None:
            return []
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        schema = f"{self._settings.schema}, {_CORRUPT} STRING"
        try:
            parsed = F.from_json(F.col("value").cast("string"), schema, options)
            wrong = rows.where(parsed[_CORRUPT].isNotNull()).select(_PLACE)
            return [row[0] for row in wrong.collect()]
        except PySparkException:  # for example, a schema without fields
            return []

    def _parse(self, batch: DataFrame) -> DataFrame:
        """Returns the messages, with their values as ``data`` if there is a schema for them."""
        if self._settings.schema is None:
            return batch
        text = F.col("value").cast("string")
        # Values that are not JSON must fail; the other modes would turn them into NULL.
        data = F.from_json(text, self._settings.schema, {"mode": "FAILFAST"})
        return batch.withColumn("data", data)

    def _columns(self) -> list[Column]:
        if self._settings.columns:
            return [F.expr(text).alias(name) for name, text in self._settings.columns]
        if self._settings.schema is not None:
            return [F.col("data.*")]
        return [F.col("value").cast("string").alias("value")]


class BatchCall:
    """One attempt. ``tag`` is the unique tag of its Spark jobs.

    ``ended`` is set when it is over. ``reported_at`` is when its duration was last reported.
    """

    def __init__(
        self, context: SparkContext, tag: str, limit: float | None, report: Report
    ) -> None:
        self._context = context
        self.tag = tag
        self._limit = limit
        self._report = report
        self._began = time.monotonic()
        self.ended = threading.Event()
        self.reported_at: float | None = None
        self._is_late = False

    def check_time(self) -> None:
        """Raises ``CallTimeout`` if its time is over."""
        if self._limit is not None and time.monotonic() - self._began >= self._limit:
            self._is_late = True
            raise CallTimeout(self._limit)

    def watch(self) -> None:
        """Reports how long it takes, and cancels its jobs when it is late, until it has ended."""
        every = _LOOK_EVERY if self._limit is None else min(_LOOK_EVERY, self._limit / _LOOKS)
        while not self.ended.wait(every):
            self._report_duration(time.monotonic())
            try:
                self.check_time()
            except CallTimeout:  # repeatedly, because a function may begin another job
                self._context.cancelJobsWithTag(self.tag)

    def _report_duration(self, now: float) -> None:
        last = self._began + _LONG - _REPORT_EVERY if self.reported_at is None else self.reported_at
        if now - last >= _REPORT_EVERY:
            self.reported_at = now
            self._report(now - self._began)

    def explain(self, error: Exception) -> Exception:
        """Returns ``CallTimeout`` if it was cancelled as too late, else the error itself."""
        if self._limit is None or not self._is_late or isinstance(error, CallTimeout):
            return error
        return CallTimeout(self._limit)


@contextmanager
def watch_call(
    context: SparkContext, name: str, limit: float | None, report: Report
) -> Iterator[BatchCall]:
    """Watches an attempt; a late one raises ``CallTimeout`` in place of its own error."""
    # Spark cancels with a delay, so each attempt has its own tag: the next one must not be hit.
    call = BatchCall(context, f"{name}-{next(_ATTEMPTS)}", limit, report)
    thread = threading.Thread(target=call.watch, name="batch-call", daemon=True)
    context.addJobTag(call.tag)
    thread.start()
    try:
        yield call
    except Exception as error:
        explained = call.explain(error)
        if explained is error:
            raise
        raise explained from error
    finally:
        call.ended.set()
        thread.join()
        context.removeJobTag(call.tag)
        if call.reported_at is not None:
            report(None)
