"""Messages that a queue lends: a lease hides them from other readers while they are in flight.

``Leases`` renews leases for as long as messages are in flight. A process that is killed lets them
run out: the queue then gives its messages to another one, so none is lost. ``LeasedSource`` is a
source on a queue service (SQS, Pub/Sub) that lends messages by calls over the network: threads
receive ahead, within a window, while the vertex works.

A leased source has no ``nack``. Ebbflow keeps what is nacked and settles it with the queue, because
queues count in whole seconds, know no delay beyond some minutes or hours, and count redeliveries
for themselves (decision 0065).
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

MOST_LENT = 10_000
"""Messages of a queue service that one process has at most: their leases have to be renewed."""

_CALLS = 8
"""Calls at once: each takes the time of a round trip, whatever it carries."""
_PAUSE = 0.5


class Leases(Generic[Handle]):
    """Messages in flight, each with what renews its lease; a thread does so in time.

    ``renew`` gets the handles of all messages in flight, three times within a lease of ``seconds``.
    What it raises is as good as silence: the next renewal is a second attempt.
    """

    def __init__(
        self, name: str, seconds: float, renew: Callable[[Sequence[Handle]], None]
    ) -> None:
        self._seconds = seconds
        self._renew = renew
        self._held: dict[bytes, Handle] = {}
        self._renewing = False
        self._change = threading.Condition()
        self._closed = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=f"{name}-leases", daemon=True)

    def __len__(self) -> int:
        return len(self._held)

    def start(self) -> None:
        """Begins to renew leases."""
        self._keeper.start()

    def take(self, handles: Mapping[bytes, Handle]) -> None:
        """Notes that these messages are in flight; a later handle of one replaces its first."""
        with self._change:
            self._held.update(handles)

    def find(self, offsets: Sequence[bytes]) -> list[Handle]:
        """Returns the handles of those that are in flight."""
        with self._change:
            return [self._held[offset] for offset in offsets if offset in self._held]

    def let_go(self, offsets: Sequence[bytes], *, at_rest: bool = False) -> None:
        """Forgets messages: no renewal of one begins; ``at_rest`` also when none is under way."""
        with self._change:
            self._change.wait_for(lambda: not (at_rest and self._renewing))
            for offset in offsets:
                self._held.pop(offset, None)

    def stop(self) -> dict[bytes, Handle]:
        """Ends the renewals; returns what was in flight."""
        self._closed.set()
        if self._keeper.is_alive():
            self._keeper.join(5)
        held, self._held = self._held, {}
        return held

    def _keep(self) -> None:
        while not self._closed.wait(self._seconds / 3):
            with self._change:
                handles, self._renewing = list(self._held.values()), True
            try:
                with contextlib.suppress(Exception):
                    if handles:
                        self._renew(handles)
            finally:
                with self._change:
                    self._renewing = False
                    self._change.notify_all()


# --- queue services -----------------------------------------------------------------------------


class Lent(NamedTuple):
    """A message, and the handle by which the queue knows this delivery of it."""

    handle: str
    message: SourceMessage


class LendingQueue(ABC):
    """A queue service. Several threads call it at once.

    Every method raises ``Unavailable`` for trouble that passes by itself, and ``SetupError`` for
    what does not.
    """

    name: str
    """What people call it, such as ``SQS queue orders``; also tells it from others."""

    most: int
    """Messages that one call receives, settles or hides at most."""

    keeps_order: bool = False
    """Whether there may be only one call at a time that receives, or an order would be lost."""

    @abstractmethod
    def open(self) -> None:
        """Connects, and looks whether the queue is there."""

    @abstractmethod
    def close(self) -> None:
        """Ends the connection."""

    @abstractmethod
    def receive(self, limit: int) -> list[Lent]:
        """Leases up to ``limit`` messages; waits about a second for the first."""

    @abstractmethod
    def settle(self, handles: Sequence[str]) -> None:
        """Takes messages off the queue. Handles that are no longer valid do not matter."""

    @abstractmethod
    def hide(self, handles: Sequence[str], seconds: int) -> None:
        """Sets leases to end in so many seconds; 0 frees the messages at once."""

    def depth(self) -> tuple[int, int] | None:
        """Returns about how many messages wait, now or later, and how many all readers have.

        ``None`` where the service does not say.
        """
        return None


_left: dict[str, tuple[dict[bytes, str], deque[SourceMessage]]] = {}
"""What a source that was closed during an outage had in flight, for the one that follows it."""


class LeasedSource(Source):
    """Reads a queue service. Threads receive ahead; acks and renewals are several calls at once.

    After an outage the source is made anew, and still knows the handles of what is in flight: these
    messages are settled and not received again, as long as their leases have not run out.
    """

    def __init__(self, queue: LendingQueue, lease: float) -> None:
        self._queue = queue
        self._lease = lease
        self._leases: Leases[str] = Leases(queue.name, lease, self._renew)
        self._arrived: deque[SourceMessage] = deque()
        self._failure: Exception | None = None
        self._hands_over = False
        """Whether a call has failed, after which Ebbflow makes the source anew."""
        self._change = threading.Condition()
        """Guards what has arrived and what failed."""
        self._is_busy = threading.Event()
        self._closing = threading.Event()
        self._receivers: list[threading.Thread] = []

    def open(self) -> None:
        """Connects and begins to receive; takes over what is in flight since an outage."""
        self._queue.open()
        self._calls = ThreadPoolExecutor(_CALLS, f"{self._queue.name}-calls")
        held, self._arrived = _left.pop(self._queue.name, ({}, deque()))
        self._leases.take(held)
        self._leases.start()
        for number in range(1 if self._queue.keeps_order else _CALLS // 2):
            thread = threading.Thread(
                target=self._receive, args=(number,), name=self._queue.name, daemon=True
            )
            self._receivers.append(thread)
            thread.start()

    @override
    def read(self, limit: int, timeout: timedelta) -> list[SourceMessage]:
        """Returns what has arrived; raises why nothing can be received."""
        with self._change:
            self._change.wait_for(lambda: self._arrived or self._failure, timeout.total_seconds())
            if not self._arrived and self._failure is not None:
                self._hands_over = True
                raise self._failure
            taken = [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]
        return taken

    @override
    def ack(self, offsets: Sequence[bytes]) -> None:
        """Takes messages off the queue; those that are not in flight here do not matter."""
        with self._noting_failures():
            self._in_pieces(self._queue.settle, self._leases.find(offsets))
        self._leases.let_go(offsets)
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
        """Frees what is in flight; during an outage leaves it to the source that follows."""
        self._closing.set()
        with self._change:
            self._change.notify_all()
        self._is_busy.set()
        for thread in self._receivers:
            thread.join()
        held = self._leases.stop()
        if held and self._hands_over:
            _left[self._queue.name] = (held, self._arrived)
        elif held:
            with contextlib.suppress(EbbflowError):
                self._in_pieces(lambda handles: self._queue.hide(handles, 0), [*held.values()])
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
        """Receives until the source is closed. All but the first thread help while much waits."""
        while not self._closing.is_set():
            if number and not self._is_busy.wait(_PAUSE):
                continue
            with self._change:
                limit = min(self._queue.most, MOST_LENT - len(self._leases))
                if limit <= 0 or self._closing.is_set():
                    self._change.wait(_PAUSE)
                    continue
            try:
                lent = self._queue.receive(limit)
            except Exception as error:  # a thread that ended would receive nothing any more
                self._fail(error)
                continue
            self._take_in(lent)
            if len(lent) == limit:
                self._is_busy.set()
            elif not self._closing.is_set():
                self._is_busy.clear()

    def _take_in(self, lent: Sequence[Lent]) -> None:
        with self._change:
            self._leases.take({each.message.offset: each.handle for each in lent})
            self._arrived += [each.message for each in lent]
            self._failure = None
            self._change.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._change:
            self._failure = error
            self._change.notify_all()
        self._closing.wait(_PAUSE)

    # --- calls ----------------------------------------------------------------------------------

    def _renew(self, handles: Sequence[str]) -> None:
        seconds = max(1, round(self._lease))
        self._in_pieces(lambda piece: self._queue.hide(piece, seconds), handles)

    def _in_pieces(self, call: Callable[[Sequence[str]], None], handles: Sequence[str]) -> None:
        """Calls for as many handles as the queue takes in one call, several pieces at once."""
        deque(self._calls.map(call, pieces_of(handles, self._queue.most)), maxlen=0)


def pieces_of(items: Sequence[Item], most: int) -> Iterator[Sequence[Item]]:
    """Yields the items in pieces of at most so many."""
    for start in range(0, len(items), most):
        yield items[start : start + most]
