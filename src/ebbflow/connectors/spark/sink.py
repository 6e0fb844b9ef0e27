"""The Spark sink: batches of messages written by any format that Spark knows.

The settings are here, light enough for workers. The driver writes (``spark.batch_write``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ebbflow.connectors.spark.format import Format

if TYPE_CHECKING:
    from ebbflow.connectors.spark.spec import SparkSink


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """Where batches are written and which columns they have.

    ``schema`` is what values are as JSON; ``columns`` are names with expressions in SQL.
    """

    format: Format
    mode: str = "append"
    schema: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    partition_by: tuple[str, ...] = ()

    @classmethod
    def of(cls, section: SparkSink, where: str) -> WriteSettings:
        """From a spec; ``where`` says whose they are."""
        return cls(
            format=Format.of(section, where),
            mode=section.mode,
            schema=section.schema_,
            columns=tuple(section.columns.items()),
            partition_by=section.partition_by,
        )
