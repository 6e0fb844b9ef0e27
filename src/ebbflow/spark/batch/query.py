"""The work of a batch vertex, on the driver: a query makes messages of a batch, a sink writes it.

**Queries** (SQL, DataFrame functions) are planned by Spark and run on its workers. Spark keeps the
result until the batch is settled, so what was looked at is what is published. A query that cannot
work at all is refused before the pipeline runs.

**Writes** (Spark sinks) have one task, in the order of the messages. So one that fails leaves
nothing behind where the format writes all of a task or nothing: databases do with a transaction,
Spark does with files.

**Calls.** ``limits.callTimeout`` holds for each attempt at either. When its time is over, Spark's
jobs of the attempt are cancelled, which ends it wherever Spark works: in a shuffle, a user's
function on a worker, a database that does not answer. Python code of a DataFrame function runs on
the driver itself and cannot be ended safely from outside; when it returns too late, the attempt
fails then. A write that has succeeded stays so, however late: it would be written twice.
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
    "Give a column 'value' of type STRING or BINARY, for example to_json(struct(*)), and if you "
    "like 'id', 'keys', 'tags', 'event_time' and 'headers'."
)
_LOOK_EVERY = 1.0
# Seldom enough to cost nothing, often enough to end a call soon after its time.
_LOOKS = 4
_LONG, _TELL_EVERY = 1.0, 2.0
Tell = Callable[[float | None], None]
"""Told for how many seconds an attempt has been running once that is long; None when it ends."""
_PLACE, _CORRUPT = "__place", "__corrupt"
_ATTEMPTS = count()


class BatchWork:
    """The work of one batch vertex. One thread uses it.

    ``traced`` if each row of the result names the message that it was made from.
    """

    traced = False

    @property
    def result(self) -> DataFrame | None:
        """The rows that all attempts since the last ``forget`` have made; ``None`` for no rows."""
        return None

    def check(self) -> None:
        """Raises ``SetupError`` if the work cannot succeed, whatever the messages are."""
        raise NotImplementedError

    def attempt(self, rows: DataFrame, call: BatchCall) -> None:
        """Works on some rows; raises what Spark, a database or user code raises."""
        raise NotImplementedError

    def explain_failure(self, error: Exception) -> Trouble:
        """Returns what an attempt failed of, without any secret."""
        return root_cause(error)

    def suspects(self, rows: DataFrame) -> list[int]:
        """Returns the places of rows that an attempt may have failed of, as far as it can tell."""
        return []

    def forget(self) -> None:
        """Drops what the attempts have made: the batch is settled, or given up."""


def messages(rows: DataFrame) -> DataFrame:
    """Returns the messages as queries see them."""
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
    """Returns a frame of no messages, to see whether a query could work."""
    nothing = (f"CAST(NULL AS {kind}) AS {name}" for name, kind in COLUMNS.items())
    return spark.range(0).selectExpr(*nothing)


class Query(BatchWork):
    """The query of one vertex, and what it made of the batch at hand."""

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
            "It was called with a DataFrame of no messages; have it return one without rows then.",
        )

    @override
    def attempt(self, rows: DataFrame, call: BatchCall) -> None:
        made = self._apply(rows)
        call.check_time()  # of a function that has returned at last
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
        """Refuses bad rows that name no input; settling deals with those that name one."""
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
    """Returns the columns of a result that mean something, each with the one type it has here."""
    types = {field.name: field.dataType for field in made.schema}
    if "value" not in types or not isinstance(types["value"], StringType | BinaryType):
        what = f"gave {made.schema.simpleString()}"
        raise ContractViolation(vertex, what, fix=_FIX)
    if "nack" in types and "id" not in types:
        what = "gave a column 'nack' without 'id'"
        raise ContractViolation(vertex, what, fix="Give the id of the message to nack as well.")
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
    """Returns a list of texts without nulls; one text is a list of one."""
    column = F.col(name)
    if not isinstance(kind, ArrayType):
        column = F.when(column.isNotNull(), F.array(column))
    return F.array_compact(column.cast("array<string>"))


class Write(BatchWork):
    """Writes the batches of one sink; it makes nothing that is to be published."""

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
            # All rows of a piece in one batch of the driver's: the row it names is the one.
            options = {"batchsize": str(self._most), **options}
        return options

    @override
    def explain_failure(self, error: Exception) -> Trouble:
        failure = root_cause(error)
        return replace(failure, text=self._settings.format.without_secrets(failure.text))

    @override
    def suspects(self, rows: DataFrame) -> list[int]:
        # Those whose values are not what the schema says.
        if self._settings.schema is None:
            return []
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        schema = f"{self._settings.schema}, {_CORRUPT} STRING"
        try:
            parsed = F.from_json(F.col("value").cast("string"), schema, options)
            wrong = rows.where(parsed[_CORRUPT].isNotNull()).select(_PLACE)
            return [row[0] for row in wrong.collect()]
        except PySparkException:  # a schema that has no fields, say
            return []

    def _parse(self, batch: DataFrame) -> DataFrame:
        """Returns the messages, with their values as ``data`` if there is a schema for them."""
        if self._settings.schema is None:
            return batch
        text = F.col("value").cast("string")
        # Anything that is not JSON has to fail: the other modes make NULL of it.
        data = F.from_json(text, self._settings.schema, {"mode": "FAILFAST"})
        return batch.withColumn("data", data)

    def _columns(self) -> list[Column]:
        if self._settings.columns:
            return [F.expr(text).alias(name) for name, text in self._settings.columns]
        if self._settings.schema is not None:
            return [F.col("data.*")]
        return [F.col("value").cast("string").alias("value")]


class BatchCall:
    """One attempt. ``tag`` is what its jobs are known by, and those of no other.

    ``ended`` is set when it is over. ``told_at`` is when people last heard that it takes long.
    """

    def __init__(self, context: SparkContext, tag: str, limit: float | None, tell: Tell) -> None:
        self._context = context
        self.tag = tag
        self._limit = limit
        self._tell = tell
        self._began = time.monotonic()
        self.ended = threading.Event()
        self.told_at: float | None = None
        self._is_late = False

    def check_time(self) -> None:
        """Raises ``CallTimeout`` if its time is over."""
        if self._limit is not None and time.monotonic() - self._began >= self._limit:
            self._is_late = True
            raise CallTimeout(self._limit)

    def watch(self) -> None:
        """Tells how long it lasts, and cancels its jobs when it is late, until it has ended."""
        every = _LOOK_EVERY if self._limit is None else min(_LOOK_EVERY, self._limit / _LOOKS)
        while not self.ended.wait(every):
            self._tell_length(time.monotonic())
            try:
                self.check_time()
            except CallTimeout:  # again and again: a function may begin another job
                self._context.cancelJobsWithTag(self.tag)

    def _tell_length(self, now: float) -> None:
        last = self._began + _LONG - _TELL_EVERY if self.told_at is None else self.told_at
        if now - last >= _TELL_EVERY:
            self.told_at = now
            self._tell(now - self._began)

    def explain(self, error: Exception) -> Exception:
        """Returns why it failed: because it was cancelled as too late, or the error itself."""
        if self._limit is None or not self._is_late or isinstance(error, CallTimeout):
            return error
        return CallTimeout(self._limit)


@contextmanager
def watch_call(
    context: SparkContext, name: str, limit: float | None, tell: Tell
) -> Iterator[BatchCall]:
    """Watches an attempt; ``CallTimeout`` in place of what it raises when it is late."""
    # Each has its own tag: Spark cancels a little later, which must not hit the next attempt.
    call = BatchCall(context, f"{name}-{next(_ATTEMPTS)}", limit, tell)
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
        if call.told_at is not None:
            tell(None)
