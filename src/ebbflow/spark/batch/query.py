"""SQL and DataFrame vertices: a query makes new messages from those of a batch.

The query is planned by Spark and runs on its workers. Its result is kept by Spark until the batch
is settled, so what was looked at is what is published. A query that cannot work at all is refused
before the pipeline runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType

from ebbflow.connectors.spark.session import root_cause
from ebbflow.domain.errors import ContractViolation, MessageTooLarge, SetupError
from ebbflow.engine.isolation import Trouble
from ebbflow.runtime.handlers import resolve_code
from ebbflow.runtime.plan import DataFrameMap, SqlMap, VertexPlan
from ebbflow.spark.batch.query_rows import null_value
from ebbflow.spark.batch.reading import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from ebbflow.spark.batch.calls import BatchCall

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


class Query:
    """The query of one vertex, and what it made of the batch at hand."""

    def __init__(self, spark: SparkSession, plan: VertexPlan) -> None:
        self._spark = spark
        self._vertex = plan.vertex
        self._largest = plan.largest
        self._sql = plan.role.query if isinstance(plan.role, SqlMap) else None
        self._code = plan.role.code if isinstance(plan.role, DataFrameMap) else None
        self._search = plan.search
        self._function: Callable[[DataFrame], Any] | None = None
        self._kept: list[DataFrame] = []
        self._filled: list[DataFrame] = []
        self.traced = False

    def check(self) -> None:
        """Raises ``SetupError`` if the query cannot work, whatever the messages are."""
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

    def attempt(self, rows: DataFrame, call: BatchCall) -> None:
        """Runs the query over some rows and keeps the result; raises what the query raises."""
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

    @staticmethod
    def explain_failure(error: Exception) -> Trouble:
        """Returns what an attempt failed of."""
        return root_cause(error)

    @staticmethod
    def suspects(rows: DataFrame) -> list[int]:
        """Returns nothing: a query does not say which rows it failed of."""
        return []

    @property
    def result(self) -> DataFrame | None:
        """The rows that all attempts have made; ``None`` for no rows."""
        return reduce(DataFrame.unionByName, self._filled) if self._filled else None

    def forget(self) -> None:
        """Drops what the attempts have made: the batch is settled, or given up."""
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
        return normalise(self._vertex, made)

    def _call_function(self, batch: DataFrame) -> DataFrame:
        if self._function is None:
            assert self._code is not None
            self._function = resolve_code(self._code, self._search)
        made = self._function(batch)
        if not isinstance(made, DataFrame):
            what = f"returned {type(made).__name__}, not a DataFrame"
            raise ContractViolation(self._vertex, what, fix=_FIX)
        return made


def normalise(vertex: str, made: DataFrame) -> DataFrame:
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
