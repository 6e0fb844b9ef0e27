"""The data source itself: what Spark makes from the options of a read or a write.

It is made on the driver. Where NATS is and the login, with the contents of its files, are settled
there and travel to the workers; nothing of it shows in a plan or in an error.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ebbflow.datasource import columns
from ebbflow.datasource.options import ReadOptions, WriteOptions, check_names, locate_server
from ebbflow.datasource.readers import BatchReader, StreamReader
from ebbflow.datasource.writer import BatchWriter, StreamWriter
from ebbflow.domain.errors import DataSourceError
from ebbflow.nats.login import Login


class JetStreamDataSource(DataSource):
    """Streams of NATS JetStream, to be read and written: ``format("jetstream")``.

    ``url`` and ``login`` are what ``register`` was called with; without it, the environment's.
    """

    url: str | None = None
    login: Login | None = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        check_names(options)
        self._server = locate_server(options.get("url") or self.url, self.login)
        # The URL may hold a password, and is not needed any more.
        super().__init__({name: text for name, text in options.items() if name != "url"})

    @classmethod
    def name(cls) -> str:
        """Returns what ``format`` is called with."""
        return "jetstream"

    def schema(self) -> StructType:
        """Returns the columns that are read."""
        self._read_options()  # so that load() refuses what cannot be read
        return columns.READ

    def reader(self, schema: StructType) -> BatchReader:
        """Makes the reader for ``spark.read``."""
        columns.check_read(schema)
        return BatchReader(self._server, self._read_options())

    def streamReader(self, schema: StructType) -> StreamReader:
        """Makes the reader for ``spark.readStream``."""
        columns.check_read(schema)
        return StreamReader(self._server, self._read_options())

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Makes the writer for ``df.write``."""
        if overwrite:
            raise DataSourceError(
                "A stream cannot be overwritten, only added to.", 'Write mode("append").'
            )
        return BatchWriter(self._server, self._write_options(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Makes the writer for ``df.writeStream``."""
        if overwrite:
            raise DataSourceError(
                "A stream cannot be overwritten, only added to.",
                'Write outputMode("append") or outputMode("update").',
            )
        return StreamWriter(self._server, self._write_options(schema))

    def _read_options(self) -> ReadOptions:
        return ReadOptions.of(self.options)

    def _write_options(self, schema: StructType) -> WriteOptions:
        options = WriteOptions.of(self.options)
        columns.check_written(schema, options.subject)
        return options
