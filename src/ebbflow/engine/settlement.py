"""The plan that settles a chunk: what to publish, where, in which order, and what to count.

The order is the guarantee (see docs/guarantees.md): redeliveries first, then dead letters and
answers, then outputs, then what observers publish of the chunk (the trail, audit rows), and only
then is the chunk done. Whatever crashes in between, the chunk is replayed. Every publication has an
id made of the chunk and a hash of the rows in it: the same rows are dropped by JetStream as a copy,
other rows (user code decided differently) are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
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
from ebbflow.engine.account import Account, AccountPart, ChunkObserver, HeldRow, gather_late
from ebbflow.engine.frames import Rows
from ebbflow.engine.outputs import NOBODY
from ebbflow.engine.position import ChunkCounts
from ebbflow.engine.publications import (
    Chunk,
    Place,
    Publication,
    Stage,
    again_rows,
    build_answers,
    build_letters,
    build_outputs,
    build_redeliveries,
)
from ebbflow.engine.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a chunk. ``reasons`` are the nack reasons, each with its number of rows.

    ``returned`` are the rows that go back to the source they came from, by index, and
    ``histories`` are these rows as they are to be when it gives them again. ``account`` is what
    observers see of the chunk. ``inlined`` is what vertices that ran inline decided about its
    outputs; their publications are among those of the chunk.
    """

    publications: list[Publication]
    counts: Counts
    reasons: dict[str, int]
    returned: dict[int, Redeliver | Retry] = field(default_factory=dict)
    histories: pa.RecordBatch | None = None
    account: Account | None = None
    inlined: tuple[InlineSettlement, ...] = ()

    def with_inlined(self, inlined: Sequence[InlineSettlement]) -> Settlement:
        """Returns the end of the chunk together with that of its outputs at inline vertices."""
        publications = [p for part in inlined for p in part.settlement.publications]
        return replace(
            self, publications=[*self.publications, *publications], inlined=tuple(inlined)
        )

    def with_parked(self, parked: Iterable[Publication]) -> Settlement:
        """Returns the end of the chunk together with that of the rows that it only parks."""
        return replace(self, publications=[*self.publications, *parked])

    @property
    def needs_intent(self) -> bool:
        """Whether a replay has to cut the same chunk again, to publish what it publishes.

        Answers and trails need none: from a chunk that is cut otherwise comes the same answer under
        the same key, and the same trail once more, which its readers take as a set. Audit rows of
        the latest claim count, however they are cut.
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
        # Also of those without a delay: an earlier attempt may have parked the same frame.
        return [p.token for p in self.of_stage(Stage.REDELIVER)]

    def inline_paths(self) -> tuple[str, ...]:
        """Returns the chains of inline vertices that took outputs of the chunk."""
        return tuple(part.path for part in self._inline_parts())

    def _inline_parts(self) -> Iterator[InlineSettlement]:
        for part in self.inlined:
            yield part
            yield from part.settlement._inline_parts()

    def all_counts(self, discarded: Collection[Publication] = ()) -> ChunkCounts:
        """Returns the counts of all vertices that worked on it, without what was given up."""
        inlined: dict[str, Counts] = {}
        for part in self._inline_parts():
            counts = part.settlement.counts_without(discarded, part.path)
            before = inlined.get(part.vertex)
            inlined[part.vertex] = counts if before is None else before + counts
        return ChunkCounts(self.counts_without(discarded), inlined)

    def counts_without(self, discarded: Collection[Publication], via: str = "") -> Counts:
        """Returns the counts if some outputs were given up; inputs without any left are drops."""
        own = [publication for publication in discarded if publication.via == via]
        if not own:
            return self.counts
        rows = sum(len(publication.parents) for publication in own)
        gone = len(self._find_lost(via, own))
        return replace(
            self.counts,
            written=self.counts.written - rows,
            done=self.counts.done - gone,
            dropped=self.counts.dropped + gone,
        )

    def amended(
        self, discarded: Collection[Publication], observers: Iterable[ChunkObserver]
    ) -> Settlement | None:
        """Returns what observers publish in addition when outputs were discarded, if anything."""
        if not discarded:
            return None
        late = [*self._amend("", discarded, observers)]
        for part in self._inline_parts():
            late += part.settlement._amend(part.path, discarded, part.observers)
        return Settlement(late, Counts(), {}) if late else None

    def _amend(
        self, via: str, discarded: Collection[Publication], observers: Iterable[ChunkObserver]
    ) -> Iterator[Publication]:
        own = [publication for publication in discarded if publication.via == via]
        if own and self.account is not None:
            yield from gather_late(observers, self.account.without(self._find_lost(via, own)))

    def _find_lost(self, via: str, discarded: Collection[Publication]) -> list[int]:
        """Returns the inputs of which no output is left."""
        kept = {
            parent
            for publication in self.publications
            if publication.via == via and publication not in discarded
            for parent in publication.parents
        }
        # An inline vertex has taken what it got, whatever full buffers discard elsewhere.
        kept |= {parent for part in self.inlined for parent in part.parents}
        rows = {parent for publication in discarded for parent in publication.parents}
        return sorted(rows - kept - {NOBODY})


@dataclass(frozen=True, slots=True)
class InlineSettlement:
    """What a vertex decided about outputs of a chunk that another vertex's task gave it inline.

    ``path`` is the chain of inline vertices that ends with this one, ``parents`` are the inputs of
    the vertex before it that the rows came from, and ``observers`` report on this vertex.
    """

    vertex: str
    path: str
    settlement: Settlement
    parents: Sequence[int] = ()
    observers: Sequence[ChunkObserver] = ()


class SortedInputs:
    """The inputs by the kind of their outcome; ``finished`` are those that were processed.

    Only what is finished may leave outputs: an output of an input that comes back would be there
    twice in the end.
    """

    def __init__(self, rows: Rows, verdict: Verdict) -> None:
        self.again: dict[int, Redeliver | Retry] = {}
        self.dead: dict[int, DeadLetter] = {}
        self.ends: Counter[str] = Counter()
        self.finished: Sequence[int]
        unfinished: set[int] = set()
        for index, outcome in verdict.outcomes.items():
            if not self._sort(index, outcome):
                unfinished.add(index)
        every = range(len(rows))
        self.finished = [i for i in every if i not in unfinished] if unfinished else every

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

    ``returning`` are the rows that, if they are to come again, come from their source. ``is_early``
    says that these are outputs of rows that have not ended. ``held`` is the row right behind the
    chunk that an ordered vertex holds. Outputs for the vertices in ``inline`` are not published:
    the task runs these vertices itself. Raises if a row cannot be settled; ``engine.rescue`` then
    finds out which one.
    """
    ends = SortedInputs(chunk.rows, verdict)
    returned = {index: how for index, how in ends.again.items() if index in returning}
    kept = {index: how for index, how in ends.again.items() if index not in returned}
    routed = build_outputs(chunk, verdict, ends.finished, place, now, watermark, inline)
    # The order of the stages; see ``Stage`` for what is lost in any other.
    publications = [
        *build_redeliveries(chunk, kept, place, now),
        *build_letters(chunk, ends.dead, place, now),
        *build_answers(chunk, verdict.answers, place),
        *routed.publications,
    ]
    at, reasons = now.astimezone(UTC), _count_reasons(ends.again)
    part = AccountPart(place, chunk.rows.batch, verdict, routed, at)
    key = f"{chunk.key}:{chunk.via}" if chunk.via else chunk.key
    account = Account(
        key,
        chunk.number,
        at,
        (part,),
        watermark,
        held,
        reasons,
        is_early,
        chunk.is_probe,
        writer=chunk.writer,
        via=chunk.via,
    )
    publications += gather_late(observers, account)
    for publication in publications:
        publication.check_size(place.max_payload)
    unrouted = len(routed.unrouted)
    counts = Counts(
        read=len(chunk.rows),
        written=_count_written(verdict, routed.written, ends),
        done=len(ends.finished) - unrouted,
        redelivered=len(ends.again),
        dead_lettered=len(ends.dead),
        dropped=ends.ends["dropped"] + unrouted,
        fallback=ends.ends["fallback"],
        served=ends.ends["served"],
        on_success=ends.ends["on_success"],
    )
    histories = None
    # What goes back to its source is not published here as well: it would come twice. How often it
    # was delivered is kept beside it, because its source does not know.
    if returned:
        histories = again_rows(chunk.rows.batch, [*returned], [*returned.values()])
    return Settlement(publications, counts, reasons, returned, histories, account)


def _count_written(verdict: Verdict, outputs: int, ends: SortedInputs) -> int:
    decisions = verdict.decisions
    if decisions.written is not None:
        return decisions.written
    return decisions.emitted_rows + outputs + ends.ends["fallback"] + ends.ends["on_success"]


def _count_reasons(again: dict[int, Redeliver | Retry]) -> dict[str, int]:
    texts = (o.error if isinstance(o, Retry) else o.reason or "nacked" for o in again.values())
    return dict(Counter(texts))
