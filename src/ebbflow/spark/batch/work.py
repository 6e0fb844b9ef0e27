"""``BatchWork``: what a batch vertex does with the rows of a batch, on the driver.

A query makes rows that are published; a write makes none. The vertex treats both alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ebbflow.engine.isolation import Trouble

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ebbflow.spark.batch.calls import BatchCall


class BatchWork(Protocol):
    """The work of one batch vertex. One thread uses it."""

    @property
    def traced(self) -> bool:
        """True if each row of the result names the message that it was made from."""

    @property
    def result(self) -> DataFrame | None:
        """The rows that all attempts since the last ``forget`` have made; ``None`` for no rows."""

    def check(self) -> None:
        """Raises ``SetupError`` if the work cannot succeed, whatever the messages are."""

    def attempt(self, rows: DataFrame, call: BatchCall) -> None:
        """Works on some rows; raises what Spark, a database or user code raises."""

    def explain_failure(self, error: Exception) -> Trouble:
        """Returns what an attempt failed of, without any secret."""

    def suspects(self, rows: DataFrame) -> list[int]:
        """Returns the places of rows that an attempt may have failed of, as far as it can tell."""

    def forget(self) -> None:
        """Drops what the attempts have made: the batch is settled, or given up."""
