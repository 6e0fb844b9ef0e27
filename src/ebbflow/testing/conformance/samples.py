"""The messages of the suite, and its user code, which decides about each of them on a worker.

The first word of a message's value says what user code does with it. A ``Journal`` records each
call and each arrival, so that rules can examine them while the pipeline runs. Every process appends
to its own file. Lines survive when their process is killed; a partly written last line is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbflow.domain.message import Datum, Message, NackOptions, Response
from ebbflow.testing.conformance.rules import Sample, SourceUnderTest, UnderTest


class Journal:
    """A folder of log files. Copies pickled to workers write; the test's own object reads."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._read: dict[str, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Journal, (self._folder,)

    def write(self, *entries: Any) -> None:
        """Append JSON entries; they are completely on disk when this returns."""
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        with open(self._folder / str(os.getpid()), "a", encoding="utf-8") as file:
            file.write(lines)

    def new(self) -> list[Any]:
        """Returns the entries since the last call. Those of one process are in order."""
        entries: list[Any] = []
        for path in sorted(self._folder.iterdir()):
            start = self._read.get(path.name, 0)
            with open(path, "rb") as file:
                file.seek(start)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path.name] = start + len(whole) + len(newline)
            entries += map(json.loads, whole.splitlines())
        return entries


DELAY = 0.4
"""The delay in seconds of a delayed nack."""
LONG_DELAY = 2.5
"""The delay in seconds of a message that is nacked before a restart."""
DELIVERIES = 2
"""The ``max_deliveries`` of a message that is never accepted."""

_SLOW = 0.01
_LONGEST_BLOCK = 30.0
_BRIEF = 64
# No message can be larger. A dead letter keeps only the beginning of a larger value.
_LARGEST = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TransformerCall:
    """One call of the transformer with a message."""

    name: str
    at: float
    deliveries: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message at the end of the pipeline."""

    name: str
    keys: list[str]
    headers: dict[str, str]
    at: float


def text_of(value: bytes) -> str:
    """Returns the name of a message: its value, or a hash if that is long or not text."""
    if len(value) <= _BRIEF and value.isascii() and value.decode().isprintable():
        return value.decode()
    if len(value) > _LARGEST:
        return f"{len(value)} bytes"
    return f"{len(value)} bytes, {hashlib.blake2b(value, digest_size=8).hexdigest()}"


class ScriptedTransformer:
    """The transformer: does what the first word of a message's value says.

    ``flood`` messages block while the file ``blocked`` exists. The first ``kill`` message creates
    the file ``killed`` and kills its worker.
    """

    def __init__(self, calls: Journal, blocked: Path, killed: Path) -> None:
        self._calls = calls
        self._blocked = blocked
        self._killed = killed

    def __call__(self, datum: Datum) -> Message:
        """Records the call and decides."""
        name = text_of(datum.value)
        self._calls.write((name, time.time(), datum.deliveries, datum.nack_reason))
        options = self._decide(name.partition(" ")[0], datum.deliveries)
        return Message(datum.value) if options is None else Message.to_nack(options)

    def _decide(self, fate: str, deliveries: int) -> NackOptions | None:
        match fate:
            case "once" if deliveries == 1:
                return NackOptions(reason="once")
            case "later" if deliveries < 3:
                return NackOptions(round(DELAY * 1000), reason=f"later {deliveries}")
            case "held" if deliveries == 1:
                return NackOptions(round(LONG_DELAY * 1000), reason="held")
            case "limited":
                return NackOptions(max_deliveries=DELIVERIES, reason="limited")
            case "never":
                return NackOptions(max_deliveries=0, reason="never")
            case "flood":
                self._block()
            case "slow":
                time.sleep(_SLOW)
            case "kill":
                self._kill()
        return None

    def _block(self) -> None:
        deadline = time.monotonic() + _LONGEST_BLOCK
        while self._blocked.exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _kill(self) -> None:
        if not self._killed.exists():
            self._killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def pass_slowly(datum: Datum) -> Message:
    """A transformer that delays slow messages, so that a stop interrupts them."""
    if datum.value.startswith(b"slow "):
        time.sleep(_SLOW / 4)
    return Message(datum.value)


class RecordingSink:
    """The sink at the end: records what arrives."""

    def __init__(self, arrivals: Journal) -> None:
        self._arrivals = arrivals

    def __call__(self, data: list[Datum]) -> list[Response]:
        """Records all messages and accepts them."""
        now = time.time()
        self._arrivals.write(
            *((text_of(datum.value), datum.keys, datum.headers, now) for datum in data)
        )
        return [Response.ok(datum.id) for datum in data]


# --- messages -----------------------------------------------------------------------------------

_COUNT = 300


def _some(fate: str, count: int, where: str) -> list[Sample]:
    return [Sample(f"{fate} {where} {number}".encode()) for number in range(count)]


PLAIN = _some("plain", _COUNT - _COUNT // 10, "flow")
"""Messages that pass without a nack."""
ONCE = _some("once", _COUNT // 10, "flow")
"""Messages that are nacked once."""
LATER = _some("later", 5, "flow")
"""Messages that are nacked twice, each time with a delay."""
LIMITED = _some("limited", 4, "flow")
"""Messages that are always nacked, with a limit of deliveries."""
NEVER = _some("never", 2, "flow")
"""Messages that are nacked with a limit of no redelivery."""
FLOW = [
    sample
    for number in range(10)
    for group in (PLAIN, ONCE, LATER, LIMITED, NEVER)
    for sample in group[number::10]
]

HELD = _some("held", 10, "restart")
"""Messages that are nacked with a long delay before the pipeline is stopped."""
SLOW = _some("slow", 200, "restart")
"""Messages that are in flight or waiting when the pipeline is stopped."""
MEANWHILE = _some("plain", 20, "meanwhile")
"""Messages that are put while the pipeline is stopped."""

LATER_CRASH = _some("later", 3, "crash")
LIMITED_CRASH = _some("limited", 3, "crash")
CRASH = [
    *LATER_CRASH,
    *LIMITED_CRASH,
    *_some("plain", 30, "before the crash"),
    *_some("kill", 1, "crash"),
    *_some("plain", 60, "after the crash"),
]

SLOW_CRASH = _some("slow", 60, "crash")
"""Messages that are in flight when the source's process is killed."""

CALLS = DELIVERIES + 1
"""How often user code is called with a limited message."""


LANDING = _some("plain", _COUNT, "landing")
"""Messages for a sink without faults."""
REFUSED = _some("refused", 5, "target")
"""Messages that a sink's target refuses at first."""
ACCEPTED = _some("accepted", 50, "target")
"""Messages that arrive together with the refused ones."""
DOWN = _some("plain", 50, "down")
"""Messages that arrive while a sink's target is down."""
STOPPED = _some("slow", 300, "stopped")
"""Messages that are in flight in a sink when the pipeline stops."""


def name_of(sample: Sample) -> str:
    """Returns the name that observations have for a message."""
    return text_of(sample.value)


def calls_wanted(name: str) -> int | None:
    """Returns how many calls a message gets that never arrives; ``None`` if it arrives."""
    return {"limited": CALLS, "never": 1}.get(name.partition(" ")[0])


def flood(under_test: SourceUnderTest) -> list[Sample]:
    """Returns the messages for a blocked pipeline."""
    return _some("flood", under_test.flood, "blocked")


def odd_values(empty_values: bool, largest: int) -> list[bytes]:
    """Returns values that a connector may fail to handle."""
    values = [
        bytes(range(256)),
        b"\0",
        b"\xff\xfe\x00",
        b'{"a": "json", "b": [1, null]}',
        "ünïcödé 💧 \u202e".encode(),
        b" leading and trailing \r\n",
        b"line\nline\r\nline",
        b"%s %d {} \\n ' \" ; --",
        b"x" * min(300_000, largest),
        bytes(range(256)) * (min(largest, 1_000_000) // 256),
    ]
    return [*values, b""] if empty_values else values


def odd(under_test: UnderTest) -> list[Sample]:
    """Returns odd values, and odd keys and headers as far as the connector keeps them."""
    odd_samples = [Sample(v) for v in odd_values(under_test.empty_values, under_test.largest)]
    if isinstance(under_test, SourceUnderTest):
        odd_samples.append(Sample(b"large" * 1_800_000))  # more than any message can hold
    if under_test.keeps_keys:
        odd_samples += [
            Sample(b"keys %d" % number, keys=keys) for number, keys in enumerate(ODD_KEYS)
        ]
    if under_test.keeps_headers:
        odd_samples += [
            Sample(b"headers %d" % number, headers=headers)
            for number, headers in enumerate(ODD_HEADERS)
        ]
    return odd_samples


ODD_KEYS = (("a",), ("ünï", "💧"), (" with blanks ",), ("a/b.c*d>e:f",), ("x" * 200,))
ODD_HEADERS: tuple[dict[str, str], ...] = (
    {"Name": "value"},
    {"X-Long": "v" * 500},
    {"X-Text": "ünïcödé 💧"},
    {"a-b_c": "with blanks, commas; and = signs"},
)


# --- observations -------------------------------------------------------------------------------


class Observations:
    """The calls and arrivals read from the journals so far, by message name."""

    def __init__(self, calls: Path, arrivals: Path) -> None:
        self.calls_journal = Journal(calls)
        self.arrivals_journal = Journal(arrivals)
        self._calls: defaultdict[str, list[TransformerCall]] = defaultdict(list)
        self._arrivals: defaultdict[str, list[Arrival]] = defaultdict(list)

    def look(self) -> set[str]:
        """Reads new journal entries; returns the names of their messages."""
        calls = [TransformerCall(*entry) for entry in self.calls_journal.new()]
        arrivals = [Arrival(*entry) for entry in self.arrivals_journal.new()]
        for call in calls:
            self._calls[call.name].append(call)
        for arrival in arrivals:
            self._arrivals[arrival.name].append(arrival)
        return {call.name for call in calls} | {arrival.name for arrival in arrivals}

    def calls(self, name: str) -> list[TransformerCall]:
        """Returns the calls with one message, by time."""
        return sorted(self._calls.get(name, ()), key=lambda call: call.at)

    def arrivals(self, name: str) -> list[Arrival]:
        """Returns the arrivals of one message at the end of the pipeline."""
        return self._arrivals.get(name, [])

    def slowest_passage(self, group: Iterable[Sample]) -> float:
        """Returns the longest time in seconds from a sample's last call to its arrival."""
        names = [name_of(sample) for sample in group]
        passages = (
            self.arrivals(name)[0].at - self.calls(name)[-1].at
            for name in names
            if self.arrivals(name) and self.calls(name)
        )
        return max(passages, default=0.0)

    def uncalled(self, group: Iterable[Sample]) -> int:
        """Returns how many samples the transformer has not been called with yet."""
        self.look()
        return sum(name_of(sample) not in self._calls for sample in group)

    def has_ended(self, name: str) -> bool:
        """Returns whether a message has arrived or had its last call."""
        if (wanted := calls_wanted(name)) is None:
            return name in self._arrivals
        return any(call.deliveries >= wanted for call in self._calls.get(name, ()))
