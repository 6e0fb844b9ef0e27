"""The plan that settles a chunk: what to publish, where, in which order, and what to count.

The order is the guarantee (see docs/guarantees.md): redeliveries first, then dead letters and
answers, then outputs, then the publications of observers (trail, audit rows), and only then is the
chunk done. If anything crashes in between, the chunk is replayed. The id of a publication consists
of the chunk and a hash of its rows: JetStream drops the same rows as a copy, and keeps other rows
(user code decided differently).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import assert_never

import pyarrow as pa

from ebbflow.domain.outcome import (
    Counts,
    DeadLetter,
    Done,
    Dropped,
    FellBack,
    Redeliver,
    Retry,
    Served,
    Succeeded,
)
from ebbflow.engine import frames
from ebbflow.engine.account import Account, AccountPart, ChunkObserver, HeldRow, gather_late
from ebbflow.engine.frames import Rows
from ebbflow.engine.outputs import NO_PARENT
from ebbflow.engine.position import ChunkCounts
from ebbflow.engine.publications import (
    Chunk,
    Place,
    Publication,
    Routed,
    Stage,
    build_answers,
    build_dead_letters,
    build_outputs,
    build_redeliveries,
    redelivered_rows,
)
from ebbflow.engine.refused import find_dead
from ebbflow.engine.verdict import Verdict

DISCARDED = Dropped("the buffer of the next vertex was full")


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a chunk. ``reasons`` are the nack reasons, each with its number of rows.

    ``returned`` are the rows that their source redelivers, by index, and ``histories`` are these
    rows in the state they must have when redelivered. Observers see ``account``. ``inlined`` are
    the settlements of vertices that ran inline on its outputs; their publications are among those
    of the chunk. ``chunk`` are the rows it settles.
    """

    publications: list[Publication]
    counts: Counts
    reasons: Mapping[str, int]
    returned: dict[int, Redeliver | Retry] = field(default_factory=dict)
    histories: pa.RecordBatch | None = None
    account: Account | None = None
    inlined: tuple[InlineSettlement, ...] = ()
    chunk: Chunk | None = None

    def with_inlined(self, inlined: Sequence[InlineSettlement]) -> Settlement:
        """Returns the end of the chunk together with those of its outputs at inline vertices."""
        publications = [p for part in inlined for p in part.settlement.publications]
        return replace(
            self, publications=[*self.publications, *publications], inlined=tuple(inlined)
        )

    def with_parked(self, parked: Iterable[Publication]) -> Settlement:
        """Returns the end of the chunk together with the rows that it only parks."""
        return replace(self, publications=[*self.publications, *parked])

    @property
    def needs_intent(self) -> bool:
        """Whether a replay has to cut the same chunk again, to make the same publications.

        Answers and trails do not need that: a chunk that is cut differently writes the same answers
        under the same keys, and trail entries that readers deduplicate. Of audit rows, those of the
        latest claim count, however they are cut.
        """
        again = {Stage.ANSWER, Stage.TRAIL, Stage.AUDIT}
        return self.histories is not None or any(p.stage not in again for p in self.publications)

    def stages(self) -> Iterator[list[Publication]]:
        """Yields the publications of each stage that has any, in order."""
        for stage in Stage:
            if these := self.of_stage(stage):
                yield these

    def of_stage(self, stage: Stage) -> list[Publication]:
        """Returns the publications of one stage."""
        return [p for p in self.publications if p.stage is stage]

    @property
    def awaited(self) -> list[str]:
        """The tokens of all redeliveries."""
        # Also those without a delay: an earlier attempt may have parked the same frame.
        return [p.token for p in self.of_stage(Stage.REDELIVER)]

    def inline_paths(self) -> tuple[str, ...]:
        """Returns the chains of inline vertices that took outputs of the chunk."""
        return tuple(part.path for part in self._inline_parts())

    def _inline_parts(self) -> Iterator[InlineSettlement]:
        for part in self.inlined:
            yield part
            yield from part.settlement._inline_parts()

    def all_counts(self, unstored: Collection[Publication] = ()) -> ChunkCounts:
        """Returns the counts of all vertices that worked on it, corrected for what is unstored."""
        inlined: dict[str, Counts] = {}
        for part in self._inline_parts():
            counts = part.settlement.counts_without(unstored, part.path)
            before = inlined.get(part.vertex)
            inlined[part.vertex] = counts if before is None else before + counts
        return ChunkCounts(self.counts_without(unstored), inlined)

    def counts_without(self, unstored: Collection[Publication], via: str = "") -> Counts:
        """Returns the counts if some publications were not stored.

        Inputs with a refused publication are dead letters, and other inputs whose outputs were all
        discarded are drops. A refused row that comes from no input of the chunk (a parked row, or
        an aggregate) counts as one more message, read and dead-lettered; an aggregate also stays
        written.
        """
        own = [publication for publication in unstored if publication.via == via]
        if not own:
            return self.counts
        ends = self._find_ends(via, own)
        dropped = sum(isinstance(end, Dropped) for end in ends.values())
        again = _gather_parents(own, Stage.REDELIVER, Stage.HAND_OVER)
        served = _gather_parents(own, Stage.ANSWER)
        aggregates = _find_orphans(p for p in own if p.stage is Stage.OUTPUT)
        orphans = len(_find_orphans(own))
        return replace(
            self.counts,
            read=self.counts.read + orphans,
            written=self.counts.written - _count_outputs(own) + len(aggregates),
            done=self.counts.done - (len(ends) - len(again)),
            redelivered=self.counts.redelivered - len(again),
            dead_lettered=self.counts.dead_lettered + len(ends) - dropped + orphans,
            dropped=self.counts.dropped + dropped,
            served=self.counts.served - len(served),
        )

    def amended(
        self, unstored: Collection[Publication], observers: Iterable[ChunkObserver]
    ) -> Settlement | None:
        """Returns the further publications if some were not stored; ``None`` if there are none.

        These are dead letters for refused messages, and the publications of observers, which were
        withheld because the chunk was not stored as planned.
        """
        if not unstored:
            return None
        more = [*self._amend("", unstored, observers)]
        for part in self._inline_parts():
            more += part.settlement._amend(part.path, unstored, part.observers)
        return Settlement(more, Counts(), {}) if more else None

    def _amend(
        self, via: str, unstored: Collection[Publication], observers: Iterable[ChunkObserver]
    ) -> Iterator[Publication]:
        account, chunk = self.account, self.chunk
        if account is None or chunk is None:
            return
        own = [publication for publication in unstored if publication.via == via]
        ends = self._find_ends(via, own)
        # For a row that has not ended, the chunk's own settlement will publish the dead letter.
        if not account.is_early:
            place, at = account.parts[0].place, account.at
            dead = {i: end for i, end in ends.items() if isinstance(end, DeadLetter)}
            yield from build_dead_letters(chunk, dead, place, at)
            for publication in _find_orphans(own).values():
                yield from _build_orphan(publication, chunk, place, at)
        yield from gather_late(observers, account.amended(ends) if ends else account)

    def refused_rows(self, unstored: Collection[Publication]) -> Mapping[int, DeadLetter]:
        """Returns the vertex's own inputs that became dead letters because of refused outputs."""
        ends = self._find_ends("", [p for p in unstored if not p.via])
        return {index: end for index, end in ends.items() if isinstance(end, DeadLetter)}

    def _find_ends(
        self, via: str, unstored: Collection[Publication]
    ) -> dict[int, DeadLetter | Dropped]:
        """Returns the inputs whose outcome differs from the decision, by what was not stored."""
        dead = find_dead([publication for publication in unstored if publication.refusal])
        dead.pop(NO_PARENT, None)
        discarded = Counter(_gather_rows(p for p in unstored if not p.refusal))
        lost = self._find_lost(via, discarded).difference(dead) if discarded else ()
        return dead | dict.fromkeys(sorted(lost), DISCARDED)

    def _find_lost(self, via: str, discarded: Mapping[int, int]) -> set[int]:
        """Returns the inputs without a stored output; ``discarded`` counts the discarded ones."""
        outputs = (p for p in self.publications if p.via == via and p.stage is Stage.OUTPUT)
        all_outputs = Counter(_gather_rows(outputs))
        lost = {row for row, count in discarded.items() if all_outputs[row] == count}
        # An inline vertex has processed its outputs, whatever full buffers elsewhere discard.
        return lost.difference({NO_PARENT}, *(part.parents for part in self.inlined))


def _gather_rows(publications: Iterable[Publication]) -> Iterator[int]:
    return (parent for publication in publications for parent in publication.parents)


def _gather_parents(refused: Iterable[Publication], *stages: Stage) -> set[int]:
    return set(_gather_rows(p for p in refused if p.stage in stages)) - {NO_PARENT}


def _count_outputs(unstored: Iterable[Publication]) -> int:
    return sum(len(p.parents) for p in unstored if p.stage is Stage.OUTPUT)


def _find_orphans(unstored: Iterable[Publication]) -> dict[str, Publication]:
    """Returns the refused rows that come from no input of the chunk, once each, by their ids."""
    alone = (p for p in unstored if p.refusal and list(p.parents) == [NO_PARENT])
    return {frames.decode(p.payload).column("id")[0].as_py(): p for p in alone}


def _build_orphan(
    refused: Publication, chunk: Chunk, place: Place, now: datetime
) -> Iterator[Publication]:
    """Yields the dead letter of a refused row that has no input in the chunk: the row itself."""
    rows = Rows(frames.decode(refused.payload))
    (why,) = find_dead([refused]).values()
    yield from build_dead_letters(
        replace(chunk, rows=rows), {0: replace(why, unread=True)}, place, now
    )


def unawaited(unstored: Iterable[Publication]) -> list[str]:
    """Returns the tokens of a vertex's own redeliveries that are not stored under their ids."""
    return [p.token for p in unstored if p.stage is Stage.REDELIVER]


@dataclass(frozen=True, slots=True)
class InlineSettlement:
    """The settlement of an inline vertex: its decisions about outputs of another vertex's chunk.

    ``path`` is the chain of inline vertices that ends with this one, ``parents`` are the inputs of
    the previous vertex that the rows came from, and ``observers`` report on this vertex.
    """

    vertex: str
    path: str
    settlement: Settlement
    parents: Sequence[int] = ()
    observers: Sequence[ChunkObserver] = ()


class SortedInputs:
    """The inputs by the kind of their outcome; ``finished`` are those that were processed.

    Only finished inputs may have outputs: an output of a redelivered input would be published
    twice in the end.
    """

    def __init__(self, rows: Rows, verdict: Verdict) -> None:
        self.again: dict[int, Redeliver | Retry] = {}
        self.dead: dict[int, DeadLetter] = {}
        self.ends: Counter[str] = Counter()
        self._every = range(len(rows))
        self._unfinished: set[int] = set()
        for index, outcome in verdict.outcomes.items():
            if type(outcome) is Redeliver:  # by far the most
                self.again[index] = outcome
                self._unfinished.add(index)
            elif not self._sort(index, outcome):
                self._unfinished.add(index)

    @property
    def number_finished(self) -> int:
        """How many inputs were processed."""
        return len(self._every) - len(self._unfinished)

    @property
    def finished(self) -> Sequence[int]:
        """The inputs that were processed."""
        unfinished = self._unfinished
        return [i for i in self._every if i not in unfinished] if unfinished else self._every

    def _sort(self, index: int, outcome: object) -> bool:
        """Notes the outcome; returns whether the input was processed."""
        match outcome:
            case Redeliver() | Retry():
                self.again[index] = outcome
            case DeadLetter():
                self.dead[index] = outcome
            case Dropped():
                self.ends["dropped"] += 1
            case FellBack():
                self.ends["fallback"] += 1
            case Succeeded():
                self.ends["on_success"] += 1
                return True
            case Served():
                self.ends["served"] += 1
                return True
            case Done():
                return True
            case never:
                assert_never(never)  # type: ignore[arg-type]
        return False


def settle(
    chunk: Chunk,
    verdict: Verdict,
    place: Place,
    now: datetime,
    watermark: datetime | None = None,
    returning: Collection[int] = (),
    held: HeldRow | None = None,
    observers: Iterable[ChunkObserver] = (),
    inline: Collection[str] = (),
    is_early: bool = False,
) -> Settlement:
    """Turns the verdict on a chunk into publications and counts. ``now`` starts every delay.

    ``returning`` are the rows that their source redelivers, if that is needed. ``is_early`` says
    that these are outputs of rows that have not ended. ``held`` is the row right behind the chunk
    that an ordered vertex holds. Outputs for the vertices in ``inline`` are not published: the task
    runs these vertices itself. Raises if a row cannot be settled; ``engine.rescue`` then finds out
    which one.
    """
    ends = SortedInputs(chunk.rows, verdict)
    returned = {index: how for index, how in ends.again.items() if index in returning}
    kept = {index: how for index, how in ends.again.items() if index not in returned}
    routed = build_outputs(chunk, verdict, ends, place, now, watermark, inline)
    # In the order of the stages; see ``Stage`` for why.
    publications = [
        *build_redeliveries(chunk, kept, place, now),
        *build_dead_letters(chunk, ends.dead, place, now),
        *build_answers(chunk, verdict.answers, place),
        *routed.publications,
    ]
    at = now.astimezone(UTC)
    part = AccountPart(place, chunk.rows.batch, verdict, routed, at)
    account = _open_account(chunk, part, watermark, held, _count_reasons(ends.again), is_early)
    if len(chunk.rows) or held is not None:  # else all rows that were read are parked
        publications += gather_late(observers, account)
    for publication in publications:
        publication.check_size(place.max_payload)
    counts = _count(len(chunk.rows), verdict, routed, ends)
    # A row that its source redelivers is not published here as well: it would be delivered twice.
    # Its deliveries are stored in the histories, because the source does not count them.
    histories = None
    if returned:
        histories = redelivered_rows(chunk.rows.batch, [*returned], [*returned.values()])
    return Settlement(
        publications, counts, account.reasons, returned, histories, account, chunk=chunk
    )


def _open_account(
    chunk: Chunk,
    part: AccountPart,
    watermark: datetime | None,
    held: HeldRow | None,
    reasons: Mapping[str, int],
    is_early: bool,
) -> Account:
    return Account(
        f"{chunk.key}:{chunk.via}" if chunk.via else chunk.key,
        chunk.number,
        part.at,
        (part,),
        watermark,
        held,
        reasons,
        is_early,
        chunk.is_probe,
        writer=chunk.writer,
        via=chunk.via,
    )


def _count(read: int, verdict: Verdict, routed: Routed, ends: SortedInputs) -> Counts:
    unrouted = len(routed.unrouted)
    return Counts(
        read=read,
        written=_count_written(verdict, routed.written, ends),
        done=ends.number_finished - unrouted,
        redelivered=len(ends.again),
        dead_lettered=len(ends.dead),
        dropped=ends.ends["dropped"] + unrouted,
        fallback=ends.ends["fallback"],
        served=ends.ends["served"],
        on_success=ends.ends["on_success"],
    )


def _count_written(verdict: Verdict, outputs: int, ends: SortedInputs) -> int:
    decisions = verdict.decisions
    if decisions.written is not None:
        return decisions.written
    return decisions.emitted_rows + outputs + ends.ends["fallback"] + ends.ends["on_success"]


def _count_reasons(again: dict[int, Redeliver | Retry]) -> dict[str, int]:
    if not again:
        return {}
    texts = [o.error if isinstance(o, Retry) else o.reason or "nacked" for o in again.values()]
    return dict(Counter(texts))
