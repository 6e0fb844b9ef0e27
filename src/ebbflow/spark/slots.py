"""Slots: how many tasks Spark can run side by side, counted for as long as a run lasts.

Every task holds a slot for an epoch. Where there are fewer slots than tasks, vertices take turns:
epochs are short, and those that are running already are told to end early. A cluster gains and
loses workers while it runs, so slots are counted again all the time, and people are told when there
are too few and when there are enough again.

**Warming up.** On an executor that has run nothing yet, a first task waits about five seconds: the
JVM loads the classes it needs, and the daemon its modules. Spark gives all tasks of a run to the
executor that comes first, if they fit, so when that one is lost, all of them would wait. An empty
job, with about a task for each executor, does it ahead. Executors without a spare slot run tasks
already.
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
# This often a number has to be seen in a row. A cluster that is just starting has none for a while.
_LOOKS, _LOOKS_AT_NONE = 2, 15
# Seconds that a lost executor explains why a task is silent.
_RECENT = 60.0
_UNREACHABLE = (
    "workers on other machines cannot reach the NATS server on 127.0.0.1; "
    "name one that they can reach with --nats"
)


def count_slots(spark: SparkSession) -> int:
    """Returns how many tasks can run at once now; 0 while a cluster has given us nothing."""
    context: Any = spark.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


def find_executors(spark: SparkSession) -> set[tuple[str, int]]:
    """Returns where tasks run, by host and port; the driver is among them."""
    context: Any = spark.sparkContext._jsc.sc()
    infos = context.statusTracker().getExecutorInfos()
    # One that has just come has no port yet. Counted with and without, it would seem lost.
    return {(info.host(), info.port()) for info in infos if info.port()}


def is_here(host: str) -> bool:
    """Returns whether a host is this machine: one can listen on addresses of one's own only."""
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
    """The slots of a run of this many tasks, whose epochs are to last ``epoch`` seconds.

    ``tell`` shows a line to whoever watches the run; ``take_turns`` has the tasks that are running
    end when they have had their turn. ``loopback`` if NATS is reached on this machine only.
    """

    def __init__(
        self,
        tasks: Callable[[], int],
        epoch: float,
        tell: Callable[[str], None],
        take_turns: Callable[[], None],
        loopback: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tasks = tasks
        self._epoch = epoch
        self._tell = tell
        self._take_turns = take_turns
        self._loopback = loopback
        self._clock = clock
        self._seen: tuple[int, int] = (0, 0)
        self._had_some = False
        self._slots = 0
        self._told: str | None = None
        self._executors: set[tuple[str, int]] = set()
        self._lost: tuple[str, float] | None = None

    def has_room(self, tasks: int) -> bool:
        """Returns whether that many more tasks would have slots."""
        return self._slots >= self._tasks() + tasks

    @property
    def epoch_seconds(self) -> float:
        """The length of an epoch that begins now."""
        return self._epoch if self._told is None else min(self._epoch, TURN)

    def takes_turns(self) -> bool:
        """Returns whether vertices take turns because there are too few slots.

        Without any slot no vertex has its turn.
        """
        return self._told is not None and self._slots > 0

    def explain_silence(self) -> str | None:
        """Returns why tasks may be silent: Spark has no workers, or has lost an executor."""
        if self._told is not None and not self._slots:
            return "Spark has no workers at the moment"
        if self._lost is None or self._clock() - self._lost[1] > _RECENT:
            return None
        host, at = self._lost
        return f"Spark lost an executor on {host} {self._clock() - at:.0f} s ago"

    @contextmanager
    def count(self, spark: SparkSession) -> Iterator[None]:
        """Counts them: on this machine once, on a cluster repeatedly while the context lasts."""
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
                self._warn_of_loopback({host for host, _ in executors})
            except (Py4JError, OSError):
                return  # Spark is going, and the run learns of it elsewhere
            if self._told is not None:
                # Again and again: a task may have been told to run long, and begin only now.
                self._take_turns()

    def note(self, slots: int) -> None:
        """Takes a count, which holds once it is seen twice in a row: executors come and go."""
        before, times = self._seen
        self._seen = slots, times + 1 if slots == before else 1
        self._had_some |= slots > 0
        if self._seen[1] == (_LOOKS if slots or self._had_some else _LOOKS_AT_NONE):
            self._settle(slots)

    def note_executors(self, executors: set[tuple[str, int]]) -> None:
        """Takes note of where tasks run, and tells when an executor is gone."""
        gone, self._executors = self._executors - executors, executors
        for host in sorted({host for host, _ in gone}):
            self._lost = host, self._clock()
            self._tell(f"Spark lost an executor on {host}; it starts its tasks again on others")

    def _settle(self, slots: int) -> None:
        self._slots, text = slots, self._shortage(slots)
        if text is not None and text != self._told:
            self._tell(text)
        elif text is None and self._told is not None:
            self._tell(f"all {self._tasks()} tasks have slots again")
        self._told = text

    def _shortage(self, slots: int) -> str | None:
        if slots >= self._tasks():
            return None
        if not slots:
            return "Spark has no workers at the moment; tasks wait until there are some"
        return (
            f"{self._tasks()} tasks have only {slots} slots, "
            f"so vertices take turns of {TURN:.0f} s; "
            "give Spark more cores to have them run side by side"
        )

    def _warn_of_loopback(self, hosts: set[str]) -> None:
        if self._loopback and not all(map(is_here, hosts)):
            self._loopback = False  # once is enough
            self._tell(_UNREACHABLE)


class WarmUp:
    """Warms up executors once for each that comes; ``begin`` starts a job of that many tasks."""

    def __init__(self, begin: Callable[[int], None]) -> None:
        self._begin = begin
        self._seen: frozenset[tuple[str, int]] = frozenset()
        self._warm: frozenset[tuple[str, int]] = frozenset()

    def look(self, executors: Collection[tuple[str, int]], spare: int) -> None:
        """Takes where executors are and how many slots no task of the run needs.

        Those that have just come may be followed by others, so they are left alone for a look.
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
        with contextlib.suppress(Exception):  # without it everything works, only later
            context.setJobGroup(_GROUP, "starting Python on executors with spare slots")
            context.parallelize(range(tasks), tasks).foreachPartition(_do_nothing)

    InheritableThread(target=run, name="warm-up", daemon=True).start()


def _do_nothing(_: Iterable[int]) -> None:
    """Runs on a worker."""
