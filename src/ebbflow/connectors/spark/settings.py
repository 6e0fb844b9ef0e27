"""The settings of the Spark source and sink: a format, its options, and SQL for messages and rows.

Plain data that the driver makes from a spec. Secrets are kept apart from the other options until
Spark is given them, and are taken out of whatever text comes back.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebbflow.domain.secrets import Secret

FILE_FORMATS = frozenset({"parquet", "orc", "json", "csv"})
"""The formats whose tables are folders of files that a writer may name."""


@dataclass(frozen=True, slots=True)
class Format:
    """The name of a format, its options, and those that are secret."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, Secret], ...] = ()

    def reveal_options(self) -> dict[str, str]:
        """Returns all options, as Spark takes them."""
        return dict(self.options) | {name: secret.reveal() for name, secret in self.secrets}

    def without_secrets(self, text: str) -> str:
        """Returns the text with every secret in it covered."""
        for _, secret in self.secrets:
            text = text.replace(secret.reveal(), "***")
        return text


@dataclass(frozen=True, slots=True)
class SparkSourceSettings:
    """A format to read, when to read it, and SQL that makes messages of its rows.

    ``stream`` of ``None`` is whatever the format can. ``every`` is a trigger in seconds.
    """

    format: Format
    schema: str | None = None
    stream: bool | None = None
    every: float | None = None
    available_now: bool = False
    value: str | None = None
    keys: str | None = None
    event_time: str | None = None
    id: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SparkSinkSettings:
    """A format to write batches with, and the columns that they have.

    ``schema`` is what values are as JSON; ``columns`` are names with expressions in SQL.
    """

    format: Format
    mode: str = "append"
    schema: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    partition_by: tuple[str, ...] = ()
