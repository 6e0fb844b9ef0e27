"""Spark sinks: the messages of a batch written by a format of Spark's.

A write has one task, in the order of the messages. So one that fails leaves nothing behind where
the format writes all of a task or nothing: databases do with a transaction, Spark does with files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from ebbflow.connectors.plans import SparkSink
from ebbflow.connectors.spark.session import find_format, root_cause
from ebbflow.domain.errors import SetupError
from ebbflow.engine.isolation import Trouble
from ebbflow.runtime.plan import SinksPlan, VertexPlan
from ebbflow.spark.batch.query import messages, no_messages

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from ebbflow.spark.batch.calls import BatchCall

_PLACE, _CORRUPT = "__place", "__corrupt"


class Write:
    """Writes the batches of one sink; it makes nothing that is to be published."""

    @property
    def traced(self) -> bool:
        """Always ``False``: there is no result."""
        return False

    @property
    def result(self) -> None:
        """Always ``None``: a write makes no rows."""

    def __init__(self, spark: SparkSession, plan: VertexPlan) -> None:
        assert isinstance(plan.role, SinksPlan)
        assert isinstance(plan.role.primary, SparkSink)
        self._spark = spark
        self._vertex = plan.vertex
        self._most = plan.batch_size
        self._settings = plan.role.primary.settings

    def check(self) -> None:
        """Raises ``SetupError`` if a column or the format can never work."""
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

    def attempt(self, rows: DataFrame, call: BatchCall) -> None:
        """Writes some rows; raises what Spark raises."""
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

    def explain_failure(self, error: Exception) -> Trouble:
        """Returns what an attempt failed of, without the secrets of the format."""
        failure = root_cause(error)
        return replace(failure, text=self._settings.format.without_secrets(failure.text))

    def suspects(self, rows: DataFrame) -> list[int]:
        """Returns the places of rows whose values are not what the schema says."""
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
        # Anything that is no JSON has to fail: the other modes make NULL of it.
        data = F.from_json(text, self._settings.schema, {"mode": "FAILFAST"})
        return batch.withColumn("data", data)

    def _columns(self) -> list[Column]:
        if self._settings.columns:
            return [F.expr(text).alias(name) for name, text in self._settings.columns]
        if self._settings.schema is not None:
            return [F.col("data.*")]
        return [F.col("value").cast("string").alias("value")]

    def forget(self) -> None:
        """Does nothing: a write keeps nothing."""
