"""The data source itself, which Spark creates for each read or write, and its columns.

Spark creates it on the driver. The driver resolves the address of NATS and the login, with the
contents of its files, and sends them to the workers; neither shows in a plan or in an error. A read
always has the same columns.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ebbflow.datasource.options import ReadOptions, WriteOptions, check_names, locate_server
from ebbflow.datasource.readers import BatchReader, StreamReader
from ebbflow.datasource.writer import BatchWriter, StreamWriter
from ebbflow.domain.errors import DataSourceError
from ebbflow.domain.spelling import did_you_mean
from ebbflow.nats.login import Login

READ = StructType(
    [
        StructField("subject", StringType()),
        StructField("sequence", LongType()),
        StructField("time", TimestampType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("data", BinaryType()),
    ]
)
WRITTEN = ("data", "subject", "headers", "msg_id")


class JetStreamDataSource(DataSource):
    """Reads and writes NATS JetStream streams: ``format("jetstream")``.

    ``url`` and ``login`` are the arguments of ``register``, or else come from the environment.
    """

    url: str | None = None
    login: Login | None = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        check_names(options)
        self._server = locate_server(options.get("url") or self.url, self.login)
        # The URL may contain a password, and is no longer needed.
        super().__init__({name: text for name, text in options.items() if name != "url"})

    @classmethod
    def name(cls) -> str:
        """Returns the name to pass to ``format``."""
        return "jetstream"

    def schema(self) -> StructType:
        """Returns the columns of a read."""
        self._read_options()  # so that load() refuses wrong options
        return READ

    def reader(self, schema: StructType) -> BatchReader:
        """Makes the reader for ``spark.read``."""
        check_read(schema)
        return BatchReader(self._server, self._read_options())

    def streamReader(self, schema: StructType) -> StreamReader:
        """Makes the reader for ``spark.readStream``."""
        check_read(schema)
        return StreamReader(self._server, self._read_options())

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Makes the writer for ``df.write``."""
        _refuse_overwriting(overwrite, 'Write mode("append").')
        return BatchWriter(self._server, self._write_options(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Makes the writer for ``df.writeStream``."""
        _refuse_overwriting(overwrite, 'Write outputMode("append") or outputMode("update").')
        return StreamWriter(self._server, self._write_options(schema))

    def _read_options(self) -> ReadOptions:
        return ReadOptions.of(self.options)

    def _write_options(self, schema: StructType) -> WriteOptions:
        options = WriteOptions.of(self.options)
        check_written(schema, options.subject)
        return options


def _refuse_overwriting(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise DataSourceError("A stream cannot be overwritten, only added to.", instead)


# --- columns --------------------------------------------------------------------------------------


def check_read(schema: StructType) -> None:
    """Refuses a schema from the user: a read always has the same columns."""
    if [(field.name, field.dataType) for field in schema] != [
        (field.name, field.dataType) for field in READ
    ]:
        raise DataSourceError(
            f"The columns are always {READ.simpleString()[7:-1]}.",
            "Leave out schema(...), and select or cast what was read.",
        )


def check_written(schema: StructType, subject: str | None) -> None:
    """Refuses columns that cannot be published; ``subject`` is the option's value."""
    for field in schema:
        _check_column(field.name, field.dataType)
    if "data" not in schema.names:
        raise DataSourceError(
            "There is no column named data.", "Rename the column to publish to data."
        )
    if "subject" not in schema.names and subject is None:
        raise DataSourceError(
            "No subject to publish to is set.",
            "Set the option subject, or add a column subject.",
        )


def _check_column(name: str, kind: DataType) -> None:
    if name not in WRITTEN:
        meant = did_you_mean(name, WRITTEN, "there are")
        raise DataSourceError(f"Column {name} cannot be published.", f"Drop or rename it; {meant}")
    if not _fits(name, kind):
        wanted = {"data": "binary or string", "headers": "map<string,string>"}.get(name, "string")
        raise DataSourceError(
            f"Column {name} is {kind.simpleString()}, and has to be {wanted}.", "Cast it."
        )


def _fits(name: str, kind: DataType) -> bool:
    if name == "headers":
        return isinstance(kind, MapType) and all(
            isinstance(part, StringType) for part in (kind.keyType, kind.valueType)
        )
    return isinstance(kind, StringType) or (name == "data" and isinstance(kind, BinaryType))
