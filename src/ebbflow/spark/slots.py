"""Slots: how many tasks Spark can run at once, counted for as long as a run lasts.

Every task holds a slot for an epoch. If there are fewer slots than tasks, vertices take turns:
epochs are short, and running epochs end early. A cluster gains and loses workers while it runs, so
slots are counted repeatedly, and the run reports when there are too few and when there are enough
again.

**Warming up.** The first task on a new executor waits about five seconds while the JVM loads its
classes and the daemon its modules. Spark places all tasks of a run on the first executor, if they
fit, so if that executor is lost, all of them would wait. An empty job with about one task for each
executor warms them up in advance. Executors without a spare slot already run tasks.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import InheritableThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GROUP = "ebbflow/warm-up"
TURN = 2.0
"""The seconds of a vertex's turn."""
_LOOK_EVERY = 1.0
# How often in a row a count must be seen. A cluster that is just starting has no slots for a while.
_LOOKS, _LOOKS_AT_NONE = 2, 15
# Seconds for which a lost executor explains a silent task.
_RECENT = 60.0
_UNREACHABLE = (
    "workers on other machines cannot reach NATS at an address of this machine only; "
    "name one that they can reach with --nats"
)


def count_slots(spark: SparkSession) -> int:
    """Returns how many tasks can run at once now; 0 while a cluster has provided no workers."""
    context: Any = spark.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


def find_executors(spark: SparkSession) -> set[tuple[str, int]]:
    """Returns the executors, including the driver, by host and port."""
    context: Any = spark.sparkContext._jsc.sc()
    infos = context.statusTracker().getExecutorInfos()
    # A new executor has no port at first. Counting it without one would make it seem lost later.
    return {(info.host(), info.port()) for info in infos if info.port()}


def is_this_machine(host: str) -> bool:
    """Returns whether a host is this machine, which can only listen on its own addresses."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_is_own(family, address[0]) for family, _, _, _, address in addresses)


def _is_own(family: int, address: str | int) -> bool:
    if ipaddress.ip_address(address).is_loopback:
        return True
    with socket.socket(family, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
        return True


class Slots:
    """The slots of a run with this many tasks, whose epochs normally last ``epoch`` seconds.

    ``show`` shows a line to the user; ``take_turns`` makes running tasks end after their turn.
    ``loopback`` if NATS can only be reached on this machine.
    """

    def __init__(
        self,
        tasks: Callable[[], int],
        epoch: float,
        show: Callable[[str], None],
        take_turns: Callable[[], None],
        loopback: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tasks = tasks
        self._epoch = epoch
        self._show = show
        self._take_turns = take_turns
        self._loopback = loopback
        self._clock = clock
        self._seen: tuple[int, int] = (0, 0)
        self._had_some = False
        self._slots = 0
        self._shown_shortage: str | None = None
        self._executors: set[tuple[str, int]] = set()
        self._lost: tuple[str, float] | None = None

    def has_room(self, tasks: int) -> bool:
        """Returns whether that many more tasks would have slots."""
        return self._slots >= self._tasks() + tasks

    @property
    def epoch_seconds(self) -> float:
        """The length of the next epoch."""
        return self._epoch if self._shown_shortage is None else min(self._epoch, TURN)

    def takes_turns(self) -> bool:
        """Returns whether vertices take turns because there are too few slots.

        Without any slots no vertex runs, so there are no turns.
        """
        return self._shown_shortage is not None and self._slots > 0

    def explain_silence(self) -> str | None:
        """Returns why tasks may be silent: Spark has no workers, or has lost an executor."""
        if self._shown_shortage is not None and not self._slots:
            return "Spark has no workers at the moment"
        if self._lost is None or self._clock() - self._lost[1] > _RECENT:
            return None
        host, at = self._lost
        return f"Spark lost an executor on {host} {self._clock() - at:.0f} s ago"

    @contextmanager
    def count(self, spark: SparkSession) -> Iterator[None]:
        """Counts slots: on this machine once, on a cluster repeatedly while the context lasts."""
        ended = threading.Event()
        if (spark.sparkContext.master or "local").startswith("local"):
            self._settle(count_slots(spark))
        else:
            thread = InheritableThread(target=self._watch, args=(spark, ended), name="slots")
            thread.daemon = True
            thread.start()
        try:
            yield
        finally:
            ended.set()

    def _watch(self, spark: SparkSession, ended: threading.Event) -> None:
        warm_up = WarmUp(partial(begin_warm_up, spark))
        while not ended.wait(_LOOK_EVERY):
            try:
                executors = find_executors(spark)
                self.note_executors(executors)
                slots = count_slots(spark)
                self.note(slots)
                warm_up.look(executors, slots - self._tasks())
            except (Py4JError, OSError):
                return  # Spark is ending, which the run detects elsewhere
            if self._shown_shortage is not None:
                # Repeatedly, because a task with a long epoch may only begin now.
                self._take_turns()

    def note(self, slots: int) -> None:
        """Notes a count, which applies once it is seen twice in a row: executors come and go."""
        before, times = self._seen
        self._seen = slots, times + 1 if slots == before else 1
        self._had_some |= slots > 0
        if self._seen[1] == (_LOOKS if slots or self._had_some else _LOOKS_AT_NONE):
            self._settle(slots)

    def note_executors(self, executors: set[tuple[str, int]]) -> None:
        """Notes the current executors; reports lost ones, and those that cannot reach NATS."""
        gone, self._executors = self._executors - executors, executors
        for host in sorted({host for host, _ in gone}):
            self._lost = host, self._clock()
            self._show(f"Spark lost an executor on {host}; it restarts its tasks on others")
        self._warn_of_loopback({host for host, _ in executors})

    def _settle(self, slots: int) -> None:
        self._slots, text = slots, self._shortage(slots)
        if text is not None and text != self._shown_shortage:
            self._show(text)
        elif text is None and self._shown_shortage is not None:
            self._show(f"all {self._tasks()} tasks have slots again")
        self._shown_shortage = text

    def _shortage(self, slots: int) -> str | None:
        if slots >= self._tasks():
            return None
        if not slots:
            return "Spark has no workers at the moment; tasks wait until there are some"
        return (
            f"{self._tasks()} tasks have only {slots} slots, "
            f"so vertices take turns of {TURN:.0f} s; "
            "give Spark more cores to run them all at once"
        )

    def _warn_of_loopback(self, hosts: set[str]) -> None:
        if self._loopback and not all(map(is_this_machine, hosts)):
            self._loopback = False  # once is enough
            self._show(_UNREACHABLE)


class WarmUp:
    """Warms up each new executor once; ``begin`` starts a job of that many tasks."""

    def __init__(self, begin: Callable[[int], None]) -> None:
        self._begin = begin
        self._seen: frozenset[tuple[str, int]] = frozenset()
        self._warm: frozenset[tuple[str, int]] = frozenset()

    def look(self, executors: Collection[tuple[str, int]], spare: int) -> None:
        """Begins a warm-up for new executors, if there are spare slots.

        It waits until the executors are the same twice in a row, since more may follow.
        """
        now, before = frozenset(executors), self._seen
        self._seen = now
        if now == before and now - self._warm and spare > 0:
            self._warm = now
            self._begin(min(len(now), spare))


def begin_warm_up(spark: SparkSession, tasks: int) -> None:
    """Starts a job of empty tasks, on its own thread. Spark spreads them over executors."""

    def run() -> None:
        context = spark.sparkContext
        with contextlib.suppress(Exception):  # without a warm-up, tasks only start later
            context.setJobGroup(_GROUP, "starting Python on executors with spare slots")
            context.parallelize(range(tasks), tasks).foreachPartition(_do_nothing)

    InheritableThread(target=run, name="warm-up", daemon=True).start()


def _do_nothing(_: Iterable[int]) -> None:
    """Runs on a worker."""
