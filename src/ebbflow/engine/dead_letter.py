"""The dead letter: a message that left the pipeline, with all that is known about why.

A dead letter is a plain JetStream message: the body is the original value and the headers carry the
facts, so that any NATS tool can read it. ``to_headers`` and ``from_message`` are inverse.

Some rows are dead on arrival: a source could not read them, or they are too large for a message. A
feed stores them in the buffer of its vertex with all others, marked. User code never sees them:
they go straight to the dead letters, settled and counted with the rows around them. So a row that
cannot be read ends exactly once and is counted, whatever is killed in between.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ebbflow.domain.outcome import DeadLetter
from ebbflow.domain.records import to_plain

if TYPE_CHECKING:  # dead letters are read without Arrow
    from ebbflow.engine.frames import Rows
    from ebbflow.engine.verdict import Operator, Verdict

PREFIX = "Ebbflow-"
REPLAYS = "Ebbflow-Replays"
"""The header of a message with the number of times it was replayed."""
HISTORY = "Ebbflow-History"
"""The header of a replayed message with its last few deaths."""
_BRIEF = 200
MAX_HEADERS = 2**16 - 1
"""The most bytes that the server accepts as the headers of a message, whatever its body."""
_LEAST_FIRST: tuple[tuple[str, Any], ...] = (
    *(("metadata", {}), ("headers", {}), ("keys", []), ("traceback", None)),
)
_REMEMBERED = 5


def describe_cause(reason: str, error: str | None) -> str:
    """Returns reason and error of a dead letter in one text, without repetition."""
    if not error or error == reason:
        return reason
    return error if reason in error else f"{reason}: {error}"


@dataclass(frozen=True, slots=True)
class EarlierDeath:
    """A dead letter that was replayed: its number, why and when it died, when it was replayed."""

    number: int
    reason: str
    deliveries: int
    died: datetime
    replayed: datetime

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON data."""
        return to_plain(self)


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter. ``size`` is the length of the original value when ``value`` was cut.

    ``unread`` if the value is what a source could not turn into a message.
    """

    id: str
    vertex: str
    value: bytes
    reason: str
    error: str | None
    traceback: str | None
    deliveries: int
    first_seen: datetime | None
    last_seen: datetime
    event_time: datetime | None
    keys: list[str]
    headers: dict[str, str]
    metadata: dict[str, dict[str, bytes]]
    size: int | None = None
    unread: bool = False

    @property
    def replays(self) -> int:
        """The number of times that the message was replayed before it died this time."""
        text = self.headers.get(REPLAYS, "")
        return int(text) if text.isdecimal() else 0

    @property
    def history(self) -> tuple[EarlierDeath, ...]:
        """The last deaths before this one, oldest first; only those that were replayed."""
        text = self.headers.get(HISTORY)
        return () if text is None else _read_history(text)

    def headers_for_replay(self, number: int, now: datetime) -> dict[str, str]:
        """Returns the headers with which the message is replayed, which say how it died."""
        death = EarlierDeath(number, self.reason[:_BRIEF], self.deliveries, self.last_seen, now)
        deaths = [*self.history, death][-_REMEMBERED:]
        text = json.dumps([one.to_json() for one in deaths])
        return {REPLAYS: str(self.replays + 1), HISTORY: text}

    def fitting(self, limit: int) -> Letter:
        """Returns this dead letter, cut if it does not fit into a message of ``limit`` bytes.

        The value is cut first. If the facts alone are too large, the least useful ones are left
        out. The id is never cut, so a dead letter fits whenever its id leaves room for it. ``size``
        is set then, and the error says which facts are left out.
        """
        room = min(limit, MAX_HEADERS)
        if len(self.value) + self._header_size() <= limit and self._header_size() <= room:
            return self
        letter = replace(self, size=self.size or len(self.value))
        for name, nothing in _LEAST_FIRST:
            if letter._header_size() > room and getattr(letter, name):
                letter = letter._without(name, nothing)
        if letter._header_size() > room:
            error = None if letter.error is None else letter.error[:_BRIEF]
            letter = replace(letter, reason=letter.reason[:_BRIEF], error=error)
        return replace(letter, value=self.value[: max(0, limit - letter._header_size())])

    def _without(self, name: str, nothing: Any) -> Letter:
        """Returns the dead letter without one of its facts, which the error then names."""
        text = f"{self.error or self.reason}; the dead letter has no room for its {name}"
        return replace(self, error=text, **{name: nothing})

    def _header_size(self) -> int:
        """Returns the bytes of the headers, with room for those that publishing adds."""
        return sum(len(k) + len(v) + 4 for k, v in self.to_headers().items()) + 1024

    def to_headers(self) -> dict[str, str]:
        """Returns the facts as message headers; absent facts have no header."""
        metadata = {
            group: {key: base64.b64encode(value).decode() for key, value in entries.items()}
            for group, entries in self.metadata.items()
        }
        facts: dict[str, Any] = {
            "Id": self.id,
            "Vertex": self.vertex,
            "Reason": self.reason,
            "Error": self.error,
            "Traceback": self.traceback,
            "Deliveries": self.deliveries,
            "First-Seen": _format_time(self.first_seen),
            "Last-Seen": _format_time(self.last_seen),
            "Event-Time": _format_time(self.event_time),
            "Keys": self.keys or None,
            "Headers": self.headers or None,
            "Metadata": metadata or None,
            "Size": self.size,
            "Unread": self.unread or None,
        }
        # JSON keeps every header on one line of plain ASCII, which is all that NATS carries.
        return {PREFIX + name: json.dumps(f) for name, f in facts.items() if f is not None}

    @classmethod
    def from_message(cls, value: bytes, headers: Mapping[str, str]) -> Letter:
        """Returns the dead letter in a message of the dead-letter stream."""
        lines = [f"\r\n{name}: {text}" for name, text in headers.items()]
        return cls.from_block(value, "".join(lines).encode())

    @classmethod
    def from_block(cls, value: bytes, block: bytes) -> Letter:
        """Returns the dead letter of a message with headers as the server sent them.

        ``KeyError`` or ``ValueError`` if it is not a dead letter.
        """
        facts = _read_facts(block)
        last_seen = _parse_time(facts["Last-Seen"])
        assert last_seen is not None
        return cls(
            id=facts["Id"],
            vertex=facts["Vertex"],
            value=value,
            reason=facts["Reason"],
            error=facts.get("Error"),
            traceback=facts.get("Traceback"),
            deliveries=facts["Deliveries"],
            first_seen=_parse_time(facts.get("First-Seen")),
            last_seen=last_seen,
            event_time=_parse_time(facts.get("Event-Time")),
            keys=facts.get("Keys", []),
            headers=facts.get("Headers", {}),
            metadata={
                group: {key: base64.b64decode(text) for key, text in entries.items()}
                for group, entries in facts.get("Metadata", {}).items()
            },
            size=facts.get("Size"),
            unread=facts.get("Unread", False),
        )


_FACT = re.compile(rb"\r\n" + PREFIX.encode() + rb"([A-Za-z-]+): ([^\r]*)")


def _read_facts(block: bytes) -> dict[str, Any]:
    # Parsed as one JSON text: parsing each fact separately takes three times as long.
    texts = [b'"%b":%b' % fact for fact in _FACT.findall(block)]
    facts: dict[str, Any] = json.loads((b"{%b}" % b",".join(texts)).decode())
    return facts


def _read_history(text: str) -> tuple[EarlierDeath, ...]:
    """Returns the earlier deaths; none if a replay did not write the header."""
    try:
        deaths = [EarlierDeath(**facts) for facts in json.loads(text)]
        return tuple(
            replace(
                death,
                died=datetime.fromisoformat(str(death.died)),
                replayed=datetime.fromisoformat(str(death.replayed)),
            )
            for death in deaths
        )
    except (ValueError, TypeError):
        return ()


def _format_time(time: datetime | None) -> str | None:
    if time is None:
        return None
    return (time if time.tzinfo is UTC else time.astimezone(UTC)).isoformat()


def _parse_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


MARK = "ebbflow"
"""The metadata group that says why a row is dead; only a feed can write it."""
_WHY = "dead"

MetadataRow = list[tuple[str, list[tuple[str, bytes]]]]


def mark_dead(why: DeadLetter) -> MetadataRow:
    """Returns the metadata of a row that is dead on arrival, as a frame holds it."""
    return [(MARK, [(_WHY, json.dumps(asdict(why)).encode())])]


def set_aside_dead(operator: Operator) -> Operator:
    """Returns an operator that passes on only rows that are not dead on arrival."""

    def decide(verdict: Verdict) -> None:
        dead = _find_dead(verdict.rows)
        if not dead:
            operator(verdict)
            return
        for index, why in dead.items():
            verdict.decisions.finish(index, why)
        alive = [index for index in range(len(verdict.rows)) if index not in dead]
        if alive:
            part = verdict.part_at(alive)
            operator(part)
            verdict.decisions.merge(alive, part.decisions)

    return decide


def _find_dead(rows: Rows) -> dict[int, DeadLetter]:
    column = rows.batch.column("metadata")
    if column.null_count == len(rows):
        return {}
    # From the batch: user code must neither remove nor add a mark.
    rows_metadata = (dict(row or ()) for row in column.to_pylist())
    return {
        index: DeadLetter(**json.loads(dict(groups[MARK])[_WHY]))
        for index, groups in enumerate(rows_metadata)
        if MARK in groups
    }
