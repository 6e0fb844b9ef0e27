"""The Spark source: the rows of any format that Spark can read, as messages.

A feed: a query on the run's own Spark stores its rows in the vertex's buffer, from where they are
read like any others. Where a query is, is kept in the state folder, so that a run continues where
the last one ended. A micro-batch that is run again after a crash stores the same messages under the
same ids, which the server drops as copies. ``rows`` says how a row becomes a message, ``storing``
is what the query's tasks do.

A query that fails is started again after a wait, from where it was; why it failed is kept to be
shown. A query that ends by itself has read everything there is.
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark import InheritableThread

from ebbflow.connectors.spark.errors import hush, trouble
from ebbflow.connectors.spark.rows import as_messages, open_table
from ebbflow.connectors.spark.session import clone_session
from ebbflow.connectors.spark.settings import SparkSourceSettings
from ebbflow.connectors.spark.storing import SCHEMA, Storing, store_on_worker
from ebbflow.domain.durations import Backoff
from ebbflow.streams.feed import Spot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_WAITS = Backoff(interval=500, factor=2.0, cap=30_000)
# A query that has run for so long before it failed starts over with the shortest wait.
_STEADY = 30.0
_LOOK = 0.25
_GRACE = 5.0
# Without a trigger a query looks for new rows all the time; a tenth of a second is soon enough.
_SETTINGS = {"spark.sql.streaming.pollingDelay": ("10ms", "100ms")}


class SparkFeed:
    """One source vertex and the thread that runs its query."""

    on_spark = True

    def __init__(self, settings: SparkSourceSettings, spot: Spot) -> None:
        self._settings = settings
        self._spot = spot
        self._stopping = threading.Event()
        self._exhausted = False
        self._failure: str | None = None
        self._thread = InheritableThread(target=self._run, name=f"source-{spot.vertex}")
        self._thread.daemon = True

    @property
    def exhausted(self) -> bool:
        """True when the query has ended by itself."""
        return self._exhausted

    @property
    def failure(self) -> str | None:
        """The last failure of the query, until it works again."""
        return self._failure

    def start(self) -> None:
        """Begins; ``SetupError`` when there is nothing to read or an expression does not work."""
        hush()
        spark = clone_session(self._spot.spark, _SETTINGS)
        table = open_table(spark, self._settings, self._spot.vertex)
        self._rows = as_messages(table, self._settings, self._spot.vertex)
        self._spot.memory.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """Reads nothing more; a micro-batch that is not stored is read again by the next run."""
        self._stopping.set()
        with contextlib.suppress(Py4JError, OSError):  # nothing runs in a JVM that has died
            self._spot.spark.sparkContext.cancelJobGroup(self._group)
        self._thread.join()

    @property
    def _group(self) -> str:
        return f"ebbflow/{self._spot.pipeline}/{self._spot.vertex}/read"

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                if self._rows.isStreaming:
                    self._stream()
                else:
                    self._read()
                self._failure, self._exhausted = None, not self._stopping.is_set()
                return
            except Exception as error:
                if self._stopping.is_set():
                    return
                cause = trouble(error)
                text = self._settings.format.without_secrets(cause.text)
                self._failure = f"{cause.kind}: {text}"
                failures = 1 if time.monotonic() - began > _STEADY else failures + 1
                self._stopping.wait(_WAITS.seconds(failures))

    def _stream(self) -> None:
        writer = self._storing_rows(None).writeStream.format("noop")
        writer = writer.option("checkpointLocation", self._file("checkpoint").as_uri())
        settings = self._settings
        if settings.available_now or self._spot.drain:
            writer = writer.trigger(availableNow=True)
        elif settings.every is not None:
            writer = writer.trigger(processingTime=f"{settings.every:.3f} seconds")
        query = writer.start()
        try:
            self._watch(query)
            self._finish(query)
        finally:
            query.stop()

    def _watch(self, query: StreamingQuery) -> None:
        """Returns when the query has ended, or is to end; raises why it failed."""
        while query.isActive and not self._stopping.wait(_LOOK):
            if self._failure is not None and query.lastProgress is not None:
                self._failure = None
        if not query.isActive:
            query.awaitTermination(1)

    def _finish(self, query: StreamingQuery) -> None:
        """Leaves a micro-batch some time to end: one that does not is stored twice in part."""
        deadline = time.monotonic() + _GRACE
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(_LOOK / 5)

    def _read(self) -> None:
        """Reads everything once, in this run or one before it."""
        complete = self._file("complete")
        if complete.exists():
            self._spot.tell(f"{self._spot.vertex} was read by an earlier run; --fresh reads again")
            return
        group, title = self._group, f"{self._spot.vertex}, read once"
        self._spot.spark.sparkContext.setJobGroup(group, title, interruptOnCancel=True)
        self._storing_rows(self._query_id()).collect()
        complete.touch()

    def _storing_rows(self, query: str | None) -> DataFrame:
        spot = self._spot
        storing = Storing(
            spot.link.server, spot.pipeline, spot.vertex, spot.partitions, spot.largest, query
        )
        return self._rows.mapInArrow(partial(store_on_worker, storing=storing), SCHEMA)

    def _query_id(self) -> str:
        """Returns the same id until everything is read, so that nothing is stored twice."""
        file = self._file("query")
        if not file.exists():
            file.write_text(uuid4().hex, encoding="utf-8")
        return file.read_text(encoding="utf-8")

    def _file(self, name: str) -> Path:
        return (self._spot.memory / name).resolve()
