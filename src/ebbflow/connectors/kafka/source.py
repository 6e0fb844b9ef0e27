"""The Kafka source: reads records of topics as messages and commits offsets only once settled.

It has no ``nack``: Ebbflow keeps a nacked message itself and counts it as settled, so it blocks no
partition and is never skipped. All available records are converted to columns at once, without
per-record Python code.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from ebbflow.connectors.kafka.kafka_client import (
    ClientErrors,
    GroupOffsets,
    KafkaSourceSettings,
    Partition,
    commit_and_confirm,
    consumer_settings,
    describe_kafka_error,
    find_topics,
    make_client,
)
from ebbflow.connectors.kafka.records import Headers, read_columns
from ebbflow.domain.errors import SetupError
from ebbflow.domain.user_source import Source

_TIME = pa.timestamp("us", tz="UTC")
_AHEAD = 8_000
_AHEAD_BYTES = 32 * 1024 * 1024
_AT_ONCE = 2_000
_POLL = 0.1
_COMMIT_EVERY = 0.1
_QUIET = 1.0
_HAND_OVER = 3.0
_UPDATE_EVERY = 1.0

_PASSING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._WAIT_COORD,
    }
)
"""Errors that the client recovers from by itself."""

_AT_THE_END = frozenset({"latest", "largest", "end"})

_YEAR_1, _YEAR_10000 = -62_135_596_800_000, 253_402_300_800_000
"""The range of times that a ``datetime`` can represent, in milliseconds since 1970."""


class Progress:
    """Messages of a partition, fetched in order and settled in any order.

    Everything before the first unsettled message may be committed: a message is never skipped,
    however many later ones are done. Offsets without a record (compaction, transactions) do not
    block commits.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()
        self.next: int | None = None
        """The offset to read next; ``None`` while unknown."""
        self.ended = False
        """True when the partition has been fetched up to its end."""
        self.committed: int | None = None
        """The last offset whose commit was started or completed."""

    def fetch(self, numbers: Sequence[int]) -> None:
        """Records that these messages are in flight. The last one is the last that was read."""
        self._open.update(numbers)
        self.next = numbers[-1] + 1
        self.ended = False

    def reach(self, end: int) -> None:
        """Records that the partition is read up to ``end``, where there is no message yet."""
        self.next = end
        self.ended = True

    def settle(self, numbers: Sequence[int]) -> None:
        """Records that these messages are settled. Ignores messages that are not in flight."""
        self._open.difference_update(numbers)

    @property
    def unsettled(self) -> int:
        """The number of messages in flight."""
        return len(self._open)

    @property
    def committable(self) -> int | None:
        """The first offset that a successor has to read; ``None`` while unknown."""
        # The smallest, not the first fetched: after a topic is recreated or an offset is reset,
        # small numbers follow large ones.
        return min(self._open, default=self.next)


def write_offsets(
    topics: Sequence[str], partitions: Sequence[int], numbers: Sequence[int]
) -> pa.Array:
    """Returns the offset of each message."""
    places = list(zip(topics, partitions, strict=True))
    starts = {place: "{}:{}:".format(*place) for place in set(places)}
    digits = pa.array(numbers, pa.int64()).cast(pa.string())
    if len(starts) == 1:
        return pc.binary_join_element_wise(*starts.values(), digits, "").cast(pa.binary())
    every = pa.array(map(starts.__getitem__, places), pa.string())
    return pc.binary_join_element_wise(every, digits, "").cast(pa.binary())


def read_offsets(offsets: pa.Array) -> Iterator[tuple[Partition, list[int]]]:
    """Yields each partition named by ``offsets`` with the numbers of its messages."""
    texts = offsets.cast(pa.string())
    while len(texts):
        topic, partition, _ = texts[0].as_py().rsplit(":", 2)
        start = f"{topic}:{partition}:"
        here = pc.starts_with(texts, start)
        numbers = pc.utf8_slice_codeunits(texts.filter(here), len(start)).cast(pa.int64())
        yield (topic, int(partition)), numbers.to_pylist()
        texts = texts.filter(pc.invert(here))


class KafkaSource(Source):
    """One member of the consumer group. A vertex with several partitions has several members.

    The group assigns and revokes partitions. Only the background thread uses the client, receives
    Kafka's callbacks and changes the set of assigned partitions.
    """

    def __init__(self, settings: KafkaSourceSettings) -> None:
        self._settings = settings
        self._consumer: Any = None
        self._partitions: dict[Partition, Progress] = {}
        self._ahead: list[Message] = []
        self._ahead_bytes = 0
        self._failure: Exception | None = None
        self._behind: int | None = None
        self._assigned = self._paused = self._all_done = self._leaving = False
        self._updated_at = self._committed = 0.0
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._follow, name="kafka-member", daemon=True)

    def open(self) -> None:
        """Joins the group; ``SetupError`` if the brokers or a topic cannot be reached."""
        self._consumer = self._join_group()
        self._lookup = GroupOffsets(consumer_settings(self._settings))
        self._thread.start()

    def close(self) -> None:
        """Commits what is settled and leaves the group."""
        with self._change:
            self._leaving = True
            self._change.notify_all()
        self._thread.join()
        self._leave_group()
        self._lookup.close()

    # --- reading and settling, on the vertex's thread -------------------------------------------

    def read(self, limit: int, timeout: timedelta) -> pa.RecordBatch:
        """Returns fetched messages; ``SetupError`` if the client cannot recover by itself."""
        with self._change:
            self._change.wait_for(lambda: self._ahead or self._failure, timeout.total_seconds())
            taken, self._ahead = self._ahead[:limit], self._ahead[limit:]
            self._ahead_bytes -= _size(taken)
            if not taken and self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            self._change.notify_all()
        return columns_of_records(taken)

    def ack(self, offsets: Sequence[bytes]) -> None:
        """Records that these messages are settled. They are committed soon."""
        self.ack_columns(pa.array(offsets, pa.binary()))

    def ack_columns(self, offsets: pa.BinaryArray) -> None:
        """Records that these messages are settled. Ignores partitions of other members."""
        settled = list(read_offsets(offsets))
        with self._change:
            for partition, numbers in settled:
                if partition in self._partitions:
                    self._partitions[partition].settle(numbers)
            self._change.notify_all()

    def pending(self) -> int | None:
        """Returns how many messages of this member's partitions are unread; ``None`` if unknown."""
        with self._change:
            return None if self._behind is None else self._behind + len(self._ahead)

    def partitions(self) -> list[int]:
        """Returns the numbers of this member's partitions, across all topics."""
        with self._change:
            return sorted({number for _, number in self._partitions})

    @property
    def exhausted(self) -> bool:
        """True when the whole group has read its topics to their ends and settled everything."""
        with self._change:
            return self._all_done and self._has_finished()

    # --- the background thread ------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._leaving:
            try:
                if self._consumer is None:
                    self._consumer = self._join_group()
                self._fetch()
                self._commit()
                self._update_progress()
            except (SetupError, KafkaException) as error:
                self._fail(error)

    def _join_group(self) -> Consumer:
        settings, errors_seen = self._settings, ClientErrors()
        own = consumer_settings(settings) | {"on_commit": self._on_commit}
        consumer: Consumer = make_client(Consumer, own, errors_seen)
        try:
            find_topics(consumer, settings.topics, settings.access, errors_seen)
        except BaseException:
            consumer.close()
            raise
        errors_seen.report = lambda text: print(
            f"Kafka at {settings.access} cannot be reached: {text}; waiting for it"
        )
        consumer.subscribe(
            list(settings.topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )
        return consumer

    def _leave_group(self) -> None:
        if self._consumer is not None:
            self._consumer.close()  # revokes all partitions, which commits them
        self._consumer, self._assigned = None, False

    def _fail(self, error: Exception) -> None:
        with self._change:
            self._failure = error
            self._change.notify_all()
            self._change.wait_for(lambda: self._leaving, _QUIET)

    def _fetch(self) -> None:
        """Fetches more records. While there is no room it only keeps the membership alive."""
        with self._change:
            has_room = self._change.wait_for(self._has_room, _QUIET)
        if not has_room:
            self._pause()
        elif self._paused:
            self._resume()
        if events := self._consumer.consume(1, _POLL):
            # Taken in before the next call, which may revoke the partition. Readers are notified
            # only after the rest has arrived: a batch of one message costs as much as a large one.
            self._take_in(events)
            self._take_in(self._consumer.consume(_AT_ONCE, 0))
            with self._change:
                self._change.notify_all()

    def _has_room(self) -> bool:
        small = len(self._ahead) < _AHEAD and self._ahead_bytes < _AHEAD_BYTES
        return self._leaving or small

    def _pause(self) -> None:
        self._consumer.pause(self._consumer.assignment())
        self._paused = True

    def _resume(self) -> None:
        self._consumer.resume(self._consumer.assignment())
        self._paused = False

    def _take_in(self, events: list[Message]) -> None:
        with self._change:
            for partition, has_failed, run in _runs(events):
                progress = self._partitions.get(partition)
                if progress is not None and has_failed:
                    _reach_ends(progress, run)
                elif progress is not None:
                    self._take_in_records(progress, run)
        for error in filter(None, map(Message.error, events)):
            self._raise_unless_passing(error)

    def _take_in_records(self, progress: Progress, records: list[Message]) -> None:
        progress.fetch(cast("list[int]", list(map(Message.offset, records))))
        self._ahead += records
        self._ahead_bytes += _size(records)
        self._all_done = False

    def _raise_unless_passing(self, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            return
        if error.fatal():
            self._leave_group()
        if error.fatal() or error.code() not in _PASSING:
            raise SetupError(
                f"Kafka at {self._settings.access} cannot continue: {describe_kafka_error(error)}.",
                "Check that topic:, consumerGroup: and config: are right.",
            )

    # --- committing -----------------------------------------------------------------------------

    def _commit(self) -> None:
        if time.monotonic() - self._committed < _COMMIT_EVERY:
            return
        self._committed = time.monotonic()
        if moved := self._to_commit(list(self._partitions)):
            try:
                self._consumer.commit(offsets=moved, asynchronous=True)
            except KafkaException as error:
                self._on_commit(error.args[0], moved)

    def _to_commit(self, partitions: list[Partition]) -> list[TopicPartition]:
        """Returns the offsets to commit, each only once."""
        moved = []
        with self._change:
            for partition in partitions:
                progress = self._partitions[partition]
                offset = progress.committable
                if offset is not None and offset != progress.committed:
                    progress.committed = offset
                    moved.append(TopicPartition(*partition, offset))
        return moved

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Makes the next commit retry the offsets that failed."""
        with self._change:
            for partition in partitions:
                progress = self._partitions.get((partition.topic, partition.partition))
                if progress is not None and (error or partition.error):
                    progress.committed = None

    # --- the group ------------------------------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with self._change:
            self._partitions |= {
                (partition.topic, partition.partition): Progress() for partition in partitions
            }
            self._assigned, self._all_done = True, False
        self._paused = True  # a partition revoked while paused is still paused when reassigned
        own = dict(self._settings.access.config)
        if partitions and own.get("auto.offset.reset") in _AT_THE_END:
            self._pin(consumer, partitions)

    def _pin(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Commits the end offset as the start of partitions that are read for the first time.

        Otherwise messages that arrive before the first commit are skipped if this member dies.
        """
        with contextlib.suppress(KafkaException):
            committed = self._lookup.find_committed(self._assigned_among(partitions))
            ends = self._lookup.find_ends(
                partition for partition, offset in committed.items() if offset is None
            )
            if ends:
                offsets = [TopicPartition(*partition, end) for partition, end in ends.items()]
                commit_and_confirm(consumer, offsets)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = self._assigned_among(partitions)
        self._await_settling(gone)
        for partition in gone:
            self._partitions[partition].committed = None
        if moved := self._to_commit(gone):
            commit_and_confirm(consumer, moved)
        self._forget(gone)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget(self._assigned_among(partitions))

    def _assigned_among(self, partitions: list[TopicPartition]) -> list[Partition]:
        named = [(partition.topic, partition.partition) for partition in partitions]
        return [partition for partition in named if partition in self._partitions]

    def _await_settling(self, gone: list[Partition]) -> None:
        """Drops unread records of these partitions and waits briefly for read ones to settle."""
        with self._change:
            unread = Counter(_partition_of(record) for record in self._ahead)
            self._keep_ahead(
                [record for record in self._ahead if _partition_of(record) not in gone]
            )

            def is_settled() -> bool:
                left = {
                    partition: self._partitions[partition].unsettled - unread[partition]
                    for partition in gone
                }
                return self._leaving or not any(left.values())

            self._change.wait_for(is_settled, _HAND_OVER)

    def _forget(self, gone: list[Partition]) -> None:
        with self._change:
            for partition in gone:
                del self._partitions[partition]
            self._keep_ahead(
                [record for record in self._ahead if _partition_of(record) in self._partitions]
            )
            self._all_done = False

    def _keep_ahead(self, records: list[Message]) -> None:
        self._ahead, self._ahead_bytes = records, _size(records)

    # --- the end --------------------------------------------------------------------------------

    def _has_finished(self) -> bool:
        every = self._partitions.values()
        return self._assigned and all(
            progress.ended and not progress.unsettled for progress in every
        )

    def _update_progress(self) -> None:
        """Updates the lag, and whether the whole group is done.

        This member can be done before the group: a partition may be moving to a member that has
        not read it yet.
        """
        if time.monotonic() - self._updated_at < _UPDATE_EVERY:
            return
        self._updated_at = time.monotonic()
        with contextlib.suppress(KafkaException):
            self._behind = self._measure_lag()
            if not self._all_done and self._has_finished():
                self._all_done = self._lookup.has_committed_all(self._settings.topics)

    def _measure_lag(self) -> int | None:
        with self._change:
            nexts = {partition: progress.next for partition, progress in self._partitions.items()}
        ends = self._lookup.find_ends(nexts)
        behind = [ends[partition] - at for partition, at in nexts.items() if at is not None]
        return sum(behind) if self._assigned and len(behind) == len(nexts) else None


def _partition_of(record: Message) -> Partition:
    return record.topic() or "", record.partition() or 0


def _size(records: Sequence[Message]) -> int:
    return sum(map(len, records))


def _runs(events: list[Message]) -> Iterator[tuple[Partition, bool, list[Message]]]:
    """Yields runs of consecutive events of one partition that are all records or all errors."""
    errors = (error is not None for error in map(Message.error, events))
    places = zip(map(Message.topic, events), map(Message.partition, events), errors, strict=True)
    for (topic, number, has_failed), run in groupby(
        zip(places, events, strict=True), key=itemgetter(0)
    ):
        yield (topic or "", number or 0), has_failed, [event for _, event in run]


def _reach_ends(progress: Progress, events: list[Message]) -> None:
    for event in events:
        error, offset = event.error(), event.offset()
        if error is not None and error.code() == KafkaError._PARTITION_EOF and offset is not None:
            progress.reach(offset)


def columns_of_records(records: Sequence[Message]) -> pa.RecordBatch:
    """Returns records as messages. A record has the same offset in every process."""
    values = list(map(Message.value, records))
    partitions = cast("list[int]", list(map(Message.partition, records)))
    topics = cast("list[str]", list(map(Message.topic, records)))
    numbers = cast("list[int]", list(map(Message.offset, records)))
    keys = list(map(Message.key, records))
    headers = cast("list[Headers]", list(map(Message.headers, records)))
    column = pa.array(values, pa.binary())
    deleted = pc.indices_nonzero(pc.is_null(column)).to_pylist() if column.null_count else ()
    columns = {
        "offset": write_offsets(topics, partitions, numbers),
        "value": column.fill_null(b""),
        "event_time": _event_times(list(map(Message.timestamp, records))),
        "partition": pa.array(partitions, pa.int32()),
        **read_columns(keys, headers, deleted),
    }
    return pa.RecordBatch.from_pydict(columns)


def _event_times(timestamps: Sequence[tuple[int, int]]) -> pa.Array:
    """Returns the times of records; null if missing or outside the range of a ``datetime``."""
    kinds = pa.array([kind for kind, _ in timestamps], pa.int8())
    times = pa.array([milliseconds for _, milliseconds in timestamps], pa.int64())
    on_calendar = pc.and_(pc.greater_equal(times, _YEAR_1), pc.less(times, _YEAR_10000))
    known = pc.and_(pc.not_equal(kinds, TIMESTAMP_NOT_AVAILABLE), on_calendar)
    milliseconds = pc.if_else(known, times, pa.scalar(None, pa.int64()))
    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(_TIME)
