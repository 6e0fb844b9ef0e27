"""Leased messages: a lease hides a message from a queue's other readers while it is in flight.

``Leases`` renews the leases of messages in flight. If a process is killed, its leases expire and
the queue delivers its messages to another process, so none is lost. ``LeasedSource`` is a source on
a queue service (SQS, Pub/Sub) that leases messages by calls over the network: threads prefetch,
within a window, while the vertex works.

A leased source has no ``nack``. Ebbflow keeps a nacked message itself and settles it with the
queue, because queues count in whole seconds, limit delays to minutes or hours, and count
redeliveries themselves (decision 0065).
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Generic, NamedTuple, TypeVar

from typing_extensions import override

from ebbflow.domain.errors import EbbflowError
from ebbflow.domain.user_source import Source, SourceMessage

Handle = TypeVar("Handle")
Item = TypeVar("Item")

MOST_LEASED = 20_000
"""The most messages of a queue service in one process, which has to renew their leases."""

_CALLS = 8
"""Concurrent calls: each takes a round trip, whatever its size."""
_PAUSE = 0.5
# Seconds. While messages are in flight, their acks must not wait for a read that finds nothing.
_ACKS_SOON = 0.02


class Leases(Generic[Handle]):
    """Messages in flight with the handles of their leases, which a thread renews in time.

    ``renew`` gets the handles of all messages in flight, three times within the shortest lease. Its
    errors are ignored: the next renewal is a second attempt.
    """

    def __init__(self, name: str, renew: Callable[[Sequence[Handle]], None]) -> None:
        self._name = name
        self._renew = renew
        self._handles: dict[bytes, Handle] = {}
        self._renewing = False
        self._change = threading.Condition()
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._handles)

    def start(self, seconds: float) -> None:
        """Starts renewing leases, the shortest of which lasts this long."""
        self._keeper = threading.Thread(
            target=self._keep, args=(seconds / 3,), name=f"{self._name}-leases", daemon=True
        )
        self._keeper.start()

    def take(self, handles: Mapping[bytes, Handle]) -> None:
        """Adds messages in flight; a later handle of a message replaces its first."""
        with self._change:
            self._handles.update(handles)

    def find(self, offsets: Sequence[bytes]) -> list[Handle]:
        """Returns the handles of those messages that are in flight."""
        with self._change:
            return [self._handles[offset] for offset in offsets if offset in self._handles]

    def remove(self, offsets: Sequence[bytes], *, after_renewal: bool = False) -> None:
        """Stops renewing messages; with ``after_renewal``, first waits for a running renewal."""
        with self._change:
            self._change.wait_for(lambda: not (after_renewal and self._renewing))
            for offset in offsets:
                self._handles.pop(offset, None)

    def stop(self) -> dict[bytes, Handle]:
        """Ends the renewals; returns the messages in flight with their handles."""
        self._closed.set()
        if self._keeper is not None:
            self._keeper.join(5)
        handles, self._handles = self._handles, {}
        return handles

    def _keep(self, every: float) -> None:
        while not self._closed.wait(every):
            with self._change:
                handles, self._renewing = list(self._handles.values()), True
            try:
                with contextlib.suppress(Exception):
                    if handles:
                        self._renew(handles)
            finally:
                with self._change:
                    self._renewing = False
                    self._change.notify_all()


# --- queue services -----------------------------------------------------------------------------


class LeasedMessage(NamedTuple):
    """A message, and the queue's handle for this delivery of it."""

    handle: str
    message: SourceMessage


class QueueService(ABC):
    """A queue service. Several threads call it at once.

    Every method raises ``Unavailable`` for a temporary failure, and ``SetupError`` for any other.
    """

    name: str
    """A unique name for display, such as ``SQS queue orders``."""

    most: int
    """The most messages that one call receives, settles or hides."""

    lease: float
    """For how many seconds a received message is leased; known once it is open."""

    keeps_order: bool = False
    """Whether only one call at a time may receive, to keep messages in order."""

    @abstractmethod
    def open(self) -> None:
        """Connects, and checks that the queue exists."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connection."""

    @abstractmethod
    def receive(self, limit: int) -> list[LeasedMessage]:
        """Leases up to ``limit`` messages; waits about a second for the first."""

    @abstractmethod
    def settle(self, handles: Sequence[str]) -> None:
        """Removes messages from the queue. Ignores handles that are no longer valid."""

    @abstractmethod
    def hide(self, handles: Sequence[str], seconds: int) -> None:
        """Makes leases end in ``seconds``; 0 frees the messages at once."""

    def depth(self) -> tuple[int, int] | None:
        """Returns about how many messages wait, delayed ones included, and how many are in flight.

        The latter counts those of all readers. ``None`` if the service does not say.
        """
        return None


_left: dict[str, tuple[dict[bytes, str], deque[SourceMessage]]] = {}
"""Messages in flight of a source that was closed during an outage, for its successor."""


class LeasedSource(Source):
    """Reads a queue service. Threads prefetch; acks and renewals are several calls at once.

    A renewal extends a lease to ``lease`` seconds.

    After an outage Ebbflow recreates the source, which keeps the handles of messages in flight:
    unless their leases have expired, they can be settled and are not received again.
    """

    def __init__(self, queue: QueueService, lease: float) -> None:
        self._queue = queue
        self._lease = lease
        self._leases: Leases[str] = Leases(queue.name, self._renew)
        self._asked_for = 0
        """The most messages that receiving calls may return now."""
        self._arrived: deque[SourceMessage] = deque()
        self._failure: Exception | None = None
        self._hands_over = False
        """Whether a call has failed, after which Ebbflow recreates the source."""
        self._change = threading.Condition()
        """Guards the arrived messages and the failure."""
        self._is_busy = threading.Event()
        self._closing = threading.Event()
        self._receivers: list[threading.Thread] = []

    def open(self) -> None:
        """Connects and starts receiving; takes over messages in flight after an outage."""
        self._queue.open()
        self._calls = ThreadPoolExecutor(_CALLS, f"{self._queue.name}-calls")
        handles, self._arrived = _left.pop(self._queue.name, ({}, deque()))
        self._leases.take(handles)
        self._leases.start(min(self._lease, self._queue.lease))
        for number in range(1 if self._queue.keeps_order else _CALLS // 2):
            thread = threading.Thread(
                target=self._receive, args=(number,), name=self._queue.name, daemon=True
            )
            self._receivers.append(thread)
            thread.start()

    @override
    def read(self, limit: int, timeout: timedelta) -> list[SourceMessage]:
        """Returns messages that have arrived; raises the error if none can be received."""
        seconds = timeout.total_seconds()
        with self._change:
            longest = min(seconds, _ACKS_SOON) if self._leases else seconds
            self._change.wait_for(lambda: self._arrived or self._failure, longest)
            if not self._arrived and self._failure is not None:
                self._hands_over = True
                raise self._failure
            taken = [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]
        return taken

    @override
    def ack(self, offsets: Sequence[bytes]) -> None:
        """Removes messages from the queue; ignores those that are not in flight here."""
        with self._noting_failures():
            self._in_pieces(self._queue.settle, self._leases.find(offsets))
        self._leases.remove(offsets)
        with self._change:
            self._change.notify_all()  # there is room again

    @override
    def pending(self) -> int | None:
        """Returns about how many messages wait, here and in the queue."""
        with self._noting_failures():
            depth = self._queue.depth()
        return None if depth is None else depth[0] + len(self._arrived)

    @property
    @override
    def exhausted(self) -> bool:
        """``True`` if the queue says that it is empty, and nothing is in flight here."""
        with self._noting_failures():
            return not self._leases and self._queue.depth() == (0, 0)

    def close(self) -> None:
        """Frees messages in flight; during an outage leaves them to the next source."""
        self._closing.set()
        with self._change:
            self._change.notify_all()
        self._is_busy.set()
        for thread in self._receivers:
            thread.join()
        in_flight = self._leases.stop()
        if in_flight and self._hands_over:
            _left[self._queue.name] = (in_flight, self._arrived)
        elif in_flight:
            with contextlib.suppress(EbbflowError):
                self._in_pieces(lambda handles: self._queue.hide(handles, 0), [*in_flight.values()])
        if self._receivers:
            self._calls.shutdown()
        self._queue.close()

    @contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            yield
        except EbbflowError:
            self._hands_over = True
            raise

    # --- receiving ------------------------------------------------------------------------------

    def _receive(self, number: int) -> None:
        """Receives until the source is closed. Only the first thread receives while few wait."""
        while not self._closing.is_set():
            if number and not self._is_busy.wait(_PAUSE):
                continue
            with self._change:
                limit = min(self._queue.most, MOST_LEASED - len(self._leases) - self._asked_for)
                if limit <= 0 or self._closing.is_set():
                    self._change.wait(_PAUSE)
                    continue
                self._asked_for += limit
            try:
                leased = self._queue.receive(limit)
            except Exception as error:  # the thread must not end: nothing else receives messages
                self._fail(error, limit)
                continue
            self._take_in(leased, limit)
            if len(leased) == limit:
                self._is_busy.set()
            elif not self._closing.is_set():
                self._is_busy.clear()

    def _take_in(self, leased: Sequence[LeasedMessage], limit: int) -> None:
        with self._change:
            self._asked_for -= limit
            self._leases.take({each.message.offset: each.handle for each in leased})
            self._arrived += [each.message for each in leased]
            self._failure = None
            self._change.notify_all()

    def _fail(self, error: Exception, limit: int) -> None:
        with self._change:
            self._asked_for -= limit
            self._failure = error
            self._change.notify_all()
        self._closing.wait(_PAUSE)

    # --- calls ----------------------------------------------------------------------------------

    def _renew(self, handles: Sequence[str]) -> None:
        seconds = max(1, round(self._lease))
        self._in_pieces(lambda piece: self._queue.hide(piece, seconds), handles)

    def _in_pieces(self, call: Callable[[Sequence[str]], None], handles: Sequence[str]) -> None:
        """Calls ``call`` with pieces of the handles, several at once."""
        deque(self._calls.map(call, pieces_of(handles, self._queue.most)), maxlen=0)


def pieces_of(items: Sequence[Item], most: int) -> Iterator[Sequence[Item]]:
    """Yields the items in pieces of at most ``most``."""
    for start in range(0, len(items), most):
        yield items[start : start + most]
