"""JetStream in the memory of a test: streams, schedules and one position by compare-and-set.

The server drops copies by their ids until it forgets them. With ``chance`` it forgets at any time,
and the readers of the task's outputs continue, record and crash at any time.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pyarrow as pa

from ebbflow.domain.errors import Fenced
from ebbflow.engine import frames
from ebbflow.engine.position import Mark, Position, Stamp
from ebbflow.engine.publications import REDELIVERED_BY, Publication, Stage
from ebbflow.streams.audit_rows import CHUNK, AuditFrame, AuditStamp
from ebbflow.streams.trail_rows import TrailRow, read_trail
from tests.runtime.following import Follower


class Moved(NamedTuple):
    """What is known of a redelivery: its token, the chunk that it comes from, and when it arrived.

    ``at`` is in seconds, as the server's own times are.
    """

    token: str
    sent_by: str
    at: float

    @property
    def stamp(self) -> Stamp | None:
        """The stamp by which its reader recognises it."""
        return Stamp.of_redelivery(self.token, self.at, self.sent_by)


@dataclass
class Server:
    """Streams with duplicate detection, schedules, and one position replaced by compare-and-set."""

    inlet: list[pa.RecordBatch]
    chance: Random | None = None
    reader: type[Follower] = Follower
    followers: dict[tuple[str, int], Follower] = field(default_factory=dict)
    due: list[pa.RecordBatch] = field(default_factory=list)
    due_ids: list[str] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    """What is known of each redelivery that is due."""
    dies: float = 0.1
    """How likely it is to be killed between storing and confirming a message."""
    moved_twice: int = 0
    """The number of rows in frames that it has moved once more."""
    waiting: list[tuple[int, bytes, str, str]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    letter_ids: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    fallen: set[str] = field(default_factory=set)
    """What a fallback sink has accepted; it is not on the server, but no crash reverts it."""
    now: int = 1_000_000
    full_until: int = 0
    """When its buffers have room again."""
    late: list[Publication] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)
    stored: bytes = Position("lineage").to_json()
    revision: int = 1
    ledger: dict[str, dict] = field(default_factory=dict)
    """The histories of messages that are back at their source."""
    trail: list[TrailRow] = field(default_factory=list)
    untrue: list[TrailRow] = field(default_factory=list)
    """The rows of the trail that named something which was not stored when they arrived."""
    audit: list[tuple[AuditFrame, bytes]] = field(default_factory=list)
    refused: dict[Stage, Collection[str]] = field(default_factory=dict)
    """The messages whose outputs or redeliveries are too large for their streams."""
    _seen: set[tuple] = field(default_factory=set)
    _stored: set[tuple[str, str]] = field(default_factory=set)

    def is_full(self, publication: Publication) -> bool:
        """Whether its stream has no room at the moment."""
        return self.full_until > self.now

    def publish(self, publication: Publication) -> None:
        """Stores a message, unless its stream has seen its id before."""
        stream = (publication.stage, publication.target, publication.partition)
        if (stream, publication.msg_id) in self._seen or self.refuses(publication):
            return
        self._seen.add((stream, publication.msg_id))
        if publication.stage is Stage.DEAD_LETTER:
            self.letters.append(publication.headers["Ebbflow-Id"].strip('"'))
            self.letter_ids.append(publication.msg_id)
        elif publication.stage is Stage.ANSWER:
            self.answers.append(publication.key.partition(".")[0])
        elif publication.stage is Stage.OUTPUT:
            ids = frames.decode(publication.payload).column("id").to_pylist()
            self.outputs += ids
            self._stored |= {(publication.target, one) for one in ids}
            buffer = (publication.target, publication.partition)
            self.followers.setdefault(buffer, self.reader()).store(publication)
        elif publication.stage is Stage.TRAIL:
            self._take_trail(read_trail(publication.payload))
        elif publication.stage is Stage.AUDIT:
            stamp = AuditStamp.read(publication.headers[CHUNK])
            frame = AuditFrame(len(self.audit) + 1, "v", 0, stamp)
            self.audit.append((frame, publication.payload))
        elif publication.due is None:
            sender = _sender_of(publication)
            moved = Moved(publication.token if sender else "", sender, self.now / 1000)
            self._became_due(publication.payload, publication.msg_id, moved)
        else:
            due, payload, msg_id = publication.due, publication.payload, publication.msg_id
            self.waiting.append((due, payload, msg_id, _sender_of(publication)))

    def refuses(self, publication: Publication) -> bool:
        """Whether its stream never accepts it."""
        if not (large := self.refused.get(publication.stage)):
            return False
        ids = frames.decode(publication.payload).column("id").to_pylist()
        return any(i.partition("/")[0] in large for i in ids)

    def _take_trail(self, rows: list[TrailRow]) -> None:
        self.trail += rows
        self.untrue += [row for row in rows if not self._is_true(row)]

    def _is_true(self, row: TrailRow) -> bool:
        """Whether everything that the row names is stored."""
        match row.outcome:
            case "dead_lettered":
                there = row.id in self.letters
            case "redelivered":
                there = row.id in self.coming_back()
            case _:
                there = not row.answers or row.request in self.answers
        return there and all((output.to, output.id) in self._stored for output in row.sent)

    def _became_due(self, payload: bytes, msg_id: str, moved: Moved) -> None:
        self.due.append(frames.decode(payload))
        self.due_ids.append(msg_id)
        self.moved.append(moved)

    def move_again(self, chance: Random) -> None:
        """Models a killed server that has forgotten the deletion of a frame, however long ago."""
        moved = [(place, one) for place, one in enumerate(self.moved) if "later" in one.token]
        if moved:
            place, one = chance.choice(moved)
            self.due.append(self.due[place])
            self.moved_twice += self.due[place].num_rows
            self.due_ids.append(self.due_ids[place])
            self.moved.append(one._replace(at=self.now / 1000))

    def happen(self) -> None:
        """Does what may happen next to the task."""
        if self.chance is None:
            return
        if self.chance.random() < 0.2:
            self.forget_ids()
        if self.chance.random() < 0.1:
            self.move_again(self.chance)
        for follower in self.followers.values():
            follower.happen(self.chance)

    def dies_before_it_confirms(self) -> bool:
        """It is killed, and is up again after a while; it knows no ids of moved messages.

        Parked messages may have become due before.
        """
        if self.chance is None or self.chance.random() <= 1 - self.dies:
            return False
        self.pass_time(self.chance.choice((0, 20, 250, 1_000)))
        self.forget_ids()
        return True

    def forget_ids(self) -> None:
        """Ends the time in which the server recognises copies."""
        self._seen.clear()

    def holds(self, publication: Publication, done: Mark) -> bool:
        """Whether it is found among the dead letters, or among waiting or unread redeliveries."""
        waiting = [msg_id for _, _, msg_id, _ in self.waiting]
        return publication.msg_id in {*self.letter_ids, *waiting, *self.due_ids[done.seq :]}

    def read(self) -> list[str]:
        """The ids of all rows that the next vertices receive, once they have read everything."""
        for follower in self.followers.values():
            follower.finish()
        return [one for follower in self.followers.values() for one in follower.done]

    def pass_time(self, ms: int) -> None:
        """Moves the redeliveries that have become due."""
        self.now += ms
        for due, payload, msg_id, sent_by in sorted(self.waiting):
            if due <= self.now:
                subject = f"v.later.{frames.fingerprint([msg_id])}"
                self._became_due(payload, msg_id, Moved(subject, sent_by, self.now / 1000))
        self.waiting = [one for one in self.waiting if one[0] > self.now]

    def write(self, position: Position, revision: int) -> int:
        """Replaces the position if it still has that revision."""
        if revision != self.revision:
            raise Fenced("v", 0)
        self.stored, self.revision = position.to_json(), revision + 1
        return self.revision

    @property
    def position(self) -> Position:
        """The recorded position."""
        return Position.from_json(self.stored)

    def ended(self) -> set[str]:
        """The inputs that have a final outcome."""
        forwarded = {i.partition("/")[0] for i in self.read()}
        return forwarded | {*self.letters, *self.answers} | self.dropped | self.fallen

    def coming_back(self) -> set[str]:
        """The inputs that some redelivery holds."""
        held = [*self.due, *(frames.decode(payload) for _, payload, *_ in self.waiting)]
        return {i for batch in held for i in batch.column("id").to_pylist()}


def _sender_of(publication: Publication) -> str:
    """The chunk that a redelivery comes from; a piece of a refused one does not name it."""
    return publication.headers.get(REDELIVERED_BY, "")
