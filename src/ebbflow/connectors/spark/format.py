"""A format of Spark's with its options: how a table, a folder or a database is reached.

Secrets are kept apart from the other options until Spark is given them, and are taken out of
whatever text comes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from ebbflow.errors import SetupError
from ebbflow.secret import Secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebbflow.connectors.spark.spec import SparkFormat

_NOT_FOUND = "[DATA_SOURCE_NOT_FOUND]"


@dataclass(frozen=True, slots=True)
class Format:
    """The name of a format, its options, and those that are secret."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, Secret], ...] = ()

    @classmethod
    def of(cls, section: SparkFormat, where: str) -> Format:
        """From a spec, with the secrets read now; ``where`` says whose they are."""
        secrets = {
            name: given.read(f"the option {name} of {where}")
            for name, given in section.secret_options.items()
        }
        return cls(section.format, tuple(section.options.items()), tuple(secrets.items()))

    def revealed(self) -> dict[str, str]:
        """All options, as Spark takes them."""
        return dict(self.options) | {name: secret.reveal() for name, secret in self.secrets}

    def without_secrets(self, text: str) -> str:
        """The text with every secret in it covered."""
        for _, secret in self.secrets:
            text = text.replace(secret.reveal(), "***")
        return text

    def check(self, spark: SparkSession, where: str) -> str:
        """The class of Spark's that knows the format; ``SetupError`` if there is none."""
        sources = spark._jvm.org.apache.spark.sql.execution.datasources.DataSource  # type: ignore[union-attr]
        conf = spark._jsparkSession.sessionState().conf()
        try:
            return str(sources.lookupDataSource(self.name, conf).getName())
        except Py4JError as error:
            if _NOT_FOUND in str(error):
                raise SetupError(
                    f"{where}: Spark has no format {self.name!r}.",
                    "Correct it, or name the package that has it with "
                    "--conf spark.jars.packages=GROUP:NAME:VERSION.",
                ) from None
            return ""  # reading or writing says what is wrong
