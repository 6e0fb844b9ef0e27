"""The shipped replay over a server in memory, where anything may crash or get lost at any step.

``Replay`` and ``Chain`` are the real thing. The server is modelled: the dead letters, and a chain
of marks for each partition. Several replays run at once, each on its own thread that continues only
when it is its turn, so that a seed determines everything that happens.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from ebbflow import Message
from ebbflow.deadletters.chain import Chain, ReplayParcel
from ebbflow.deadletters.filters import StoredLetter
from ebbflow.deadletters.replay import Leaving, LetterBatch, Purge, Replay
from ebbflow.engine.dead_letter import Letter
from ebbflow.streams.replays import PackedFrame, ReplayMark, ReplayTarget, StoredMark
from tests.deadletters.written import LETTER

VERTICES = {"enrich": 2, "store": 1}


class Killed(BaseException):
    """The process is gone, wherever it was."""


@dataclass
class Server:
    """Everything that is stored. ``delivered`` is what tasks have read at once and for good."""

    letters: dict[int, Letter]
    chains: dict[ReplayTarget, list[StoredMark]] = field(default_factory=dict)
    seq: int = 0
    delivered: list[tuple[ReplayTarget, int]] = field(default_factory=list)
    late: list[Callable[[], object]] = field(default_factory=list)

    def store(
        self, target: ReplayTarget, frames: Sequence[PackedFrame], mark: ReplayMark, expected: int
    ) -> int | None:
        """All or nothing, on the condition that the expected mark is the last one."""
        chain = self.chains.setdefault(target, [])
        if (chain[-1].seq if chain else 0) != expected:
            return None
        self.delivered += [(target, int(frame.payload)) for frame in frames]
        self.seq += len(frames) + 1
        chain.append(StoredMark(self.seq, mark))
        return self.seq


class Turns:
    """Lets one thread continue at a time, chosen by a seed."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._waiting: dict[str, threading.Event] = {}
        self._reached = threading.Semaphore(0)

    def wait(self, name: str) -> None:
        """Called by a replay before each step: returns when it is its turn."""
        event = self._waiting[name] = threading.Event()
        self._reached.release()
        event.wait()

    def run(self, works: dict[str, Callable[[], object]]) -> None:
        """Runs all works to their ends."""
        threads = {name: threading.Thread(target=self._do, args=(name, work))
                   for name, work in works.items()}  # fmt: skip
        for thread in threads.values():
            thread.start()
            self._reached.acquire()
        while self._waiting:
            name = self._random.choice(sorted(self._waiting))
            event = self._waiting.pop(name)
            event.set()
            self._reached.acquire()
        for thread in threads.values():
            thread.join()

    def _do(self, name: str, work: Callable[[], object]) -> None:
        self.wait(name)
        try:
            with suppress(Killed):
                work()
        finally:
            self._reached.release()


class Wire:
    """One replay's view of the server, in which calls fail. ``faults`` is their chance."""

    def __init__(
        self, server: Server, random: Random, faults: float, turn: Callable[[], None]
    ) -> None:
        self._server = server
        self._random = random
        self._faults = faults
        self._turn = turn

    def _call(self, effect: Callable[[], Any], is_store: bool = False) -> Any:
        self._turn()
        while self._server.late and self._random.random() < 0.5:
            self._server.late.pop(0)()
        if self._random.random() >= self._faults:
            return effect()
        fault = self._random.choice(("before", "after", "lost", "refused", "late"))
        if fault == "before":
            raise Killed
        if is_store and fault == "late":
            self._server.late.append(effect)
            return None
        if is_store and fault == "refused":
            return None
        answer = effect()
        if is_store and fault == "lost":
            return None
        if fault == "after":
            raise Killed
        return answer

    def read_last(self, target: ReplayTarget) -> StoredMark | None:
        """As in ``ReplayStore``."""
        chains = self._server.chains
        return self._call(lambda: (chains.get(target) or [None])[-1])

    def store(
        self, target: ReplayTarget, frames: Iterable[PackedFrame], mark: ReplayMark, expected: int
    ) -> int | None:
        """As in ``ReplayStore``."""
        sent = [*frames]
        return self._call(lambda: self._server.store(target, sent, mark, expected), is_store=True)

    def forget(self, target: ReplayTarget, up_to: int) -> None:
        """As in ``ReplayStore``."""
        chain = self._server.chains.get(target, [])
        self._call(lambda: chain.__setitem__(slice(None), [m for m in chain if m.seq > up_to]))

    def delete(self, numbers: Collection[int]) -> int:
        """As in ``ReplayStore``; a process may be killed between two of them."""
        letters = self._server.letters
        return sum(
            self._call(lambda number=number: letters.pop(number, None)) is not None
            for number in sorted(numbers)
        )

    def sweep(self, vertex: str, up_to: int) -> int:
        """As in ``ReplayStore``."""
        letters = self._server.letters

        def effect() -> int:
            swept = [n for n, letter in letters.items() if letter.vertex == vertex and n <= up_to]
            return len([letters.pop(n) for n in swept])

        count: int = self._call(effect)
        return count

    def wait(self) -> None:
        """As in ``ReplayStore``."""
        self._turn()

    # --- as ``Reading``: nothing is newer than the last ``renew``, as on a server that lags ------

    def renew(self) -> None:
        """As in ``Reading``."""
        self._there = self._call(lambda: dict(self._server.letters))

    def read(self, after: int, most: int) -> LetterBatch | None:
        """As in ``Reading``."""
        numbers = [number for number in sorted(self._there) if number > after][: min(most, 3)]
        if not numbers:
            return None
        self._turn()
        letters = [StoredLetter(number, self._there[number]) for number in numbers]
        return LetterBatch(letters, numbers[-1])


class Packing:
    """Dead letters as frames of one number each, for the partitions of the model."""

    def renew(self) -> None:
        """As in ``Packing``."""

    def explain_refusal(self, letter: Letter) -> str | None:
        """As in ``Packing``."""
        return "cut" if letter.size else None

    def explain_size(self, letter: Letter) -> str | None:
        """As in ``Packing``."""
        return None

    def choose(self, letter: Letter) -> ReplayTarget:
        """As in ``Packing``."""
        return ReplayTarget(letter.vertex, int(letter.id) % VERTICES[letter.vertex])

    def pack(self, letters: Sequence[Leaving]) -> dict[ReplayTarget, ReplayParcel]:
        """As in ``Packing``."""
        groups: dict[ReplayTarget, list[Leaving]] = {}
        for leaving in letters:
            groups.setdefault(leaving.target, []).append(leaving)
        return {
            target: ReplayParcel(
                [PackedFrame(1, b"%d" % one.number) for one in group if one.letter is not None],
                tuple(one.number for one in group),
            )
            for target, group in groups.items()
        }


def transform(letter: Letter) -> Letter | Message | None:
    """Every seventh dead letter is dropped and every eleventh stays."""
    number = int(letter.id)
    if number % 7 == 0:
        return Message.to_drop()
    return None if number % 11 == 0 else letter


@dataclass
class Scenario:
    """Replays of the same dead letters: some concurrent, some killed, and a last one to the end.

    With ``purges`` others delete all dead letters, by number or as a whole, and nothing is killed.
    ``counts`` are how many all of them have sent and deleted, by their own count.
    """

    seed: int
    chain: type[Chain] = Chain
    with_transform: bool = True
    purges: str = "none"
    letters: int = 24
    counts: Counter[str] = field(default_factory=Counter)

    def run(self) -> Server:
        """Returns the server when the last replay is over."""
        random = Random(self.seed)
        names = [*VERTICES]
        server = Server(
            {
                number: replace(LETTER, id=str(number), vertex=random.choice(names))
                for number in range(1, self.letters + 1)
            }
        )
        for _ in range(random.randint(1, 3)):
            faults = 0.0 if self.purges != "none" else random.choice((0.0, 0.02, 0.1))
            self._run_at_once(server, random, faults)
        for effect in server.late:
            effect()
        server.late.clear()
        turns = Turns(random)
        turns.run({"last": self._make("last", server, random, 0.0, turns, [*VERTICES])})
        return server

    def _run_at_once(self, server: Server, random: Random, faults: float) -> None:
        turns = Turns(random)
        vertices = random.sample([*VERTICES], random.randint(0, 2))
        works = {
            name: self._make(name, server, random, faults, turns, vertices)
            for name in map(str, range(random.randint(1, 3)))
        }
        turns.run(works)

    def _make(
        self,
        name: str,
        server: Server,
        random: Random,
        faults: float,
        turns: Turns,
        vertices: list[str],
    ) -> Callable[[], object]:
        wire = Wire(server, random, faults, lambda: turns.wait(name))

        def find_targets(vertex: str) -> list[ReplayTarget]:
            return [ReplayTarget(vertex, partition) for partition in range(VERTICES[vertex])]

        kind: type[Replay] | None = Replay
        if self.purges != "none" and name != "last":
            kind = random.choice((Replay, Purge if self.purges == "some" else None))

        def work() -> None:
            chain = self.chain(wire, find_targets)
            if kind is None:
                self.counts["purged"] += sum(chain.delete_all(v, self.letters) for v in vertices)
                chain.release()
                return
            wire.renew()
            replay = kind(
                chain,
                wire,
                Packing(),
                vertices,
                wire.delete,
                transform=transform if self.with_transform else None,
                whole=random.random() < 0.5,
            )
            result = replay.run()
            self.counts += Counter(sent=result.sent, purged=result.purged)

        return work

    def find_faults(self) -> list[str]:
        """Describes everything that is wrong in the end."""
        server = self.run()
        sent = Counter(number for _, number in server.delivered)
        numbers = range(1, self.letters + 1)
        outcomes = {n: "stays" if self.with_transform and n % 11 == 0 else "goes" for n in numbers}
        outcomes |= {n: "dropped" for n in numbers if self.with_transform and n % 7 == 0}
        wrong = [f"{n} was sent twice" for n, times in sent.items() if times > 1]
        for number, outcome in outcomes.items():
            if (outcome == "goes") != (number in sent):
                wrong.append(f"{number} {outcome}, but was sent {sent[number]} times")
            if (outcome == "stays") != (number in server.letters):
                wrong.append(f"{number} {outcome}, but is there: {number in server.letters}")
        wrong += [f"a mark is left on {t}" for t, chain in server.chains.items() if chain]
        return wrong
