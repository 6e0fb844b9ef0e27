"""A vertex in memory: it decides about messages, settles them, and reads redelivered ones.

The decisions and the settlement are the engine's own; only waits and NATS are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa

from ebbflow.domain.durations import Backoff
from ebbflow.domain.message import Datum
from ebbflow.domain.outcome import Counts
from ebbflow.engine import frames
from ebbflow.engine.checks import Rules
from ebbflow.engine.dead_letter import Letter
from ebbflow.engine.frames import Rows
from ebbflow.engine.publications import Chunk, Place, Publication, Stage
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import settle
from ebbflow.engine.verdict import Operator, Verdict
from tests.engine.sample_rows import NOW

LARGEST = 1_000_000
_MOST_ROUNDS = 20


@dataclass
class Ended:
    """What a vertex has left behind."""

    counts: Counts = field(default_factory=Counts)
    letters: list[Letter] = field(default_factory=list)
    outputs: list[Datum] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)


class MemoryVertex:
    """A vertex with one partition and, unless it is a sink, one edge."""

    def __init__(self, decide: Operator, policy: Backoff, sink: bool, renew=lambda: None) -> None:
        self._decide = decide
        self._rules = Rules("out", policy, LARGEST)
        edges = [] if sink else [Edge("next")]
        self._place = Place("out", 0, edges, LARGEST, "answers")
        self._renew = renew

    def run(self, rows: pa.RecordBatch) -> Ended:
        """Takes the rows, and all that is redelivered, until nothing is."""
        ended = Ended()
        for number in count():
            if not rows.num_rows:
                return ended
            assert number < _MOST_ROUNDS, "it continues forever"
            verdict = Verdict(Rows(rows), self._rules)
            self._renew()
            self._decide(verdict)
            rows = self._settle(ended, Chunk(f"c{number}", verdict.rows), verdict)

    def _settle(self, ended: Ended, chunk: Chunk, verdict: Verdict) -> pa.RecordBatch:
        settlement = settle(chunk, verdict, self._place, NOW)
        ended.counts += settlement.counts
        again: list[pa.RecordBatch] = []
        for publication in settlement.publications:
            match publication.stage:
                case Stage.REDELIVER:
                    again.append(frames.decode(publication.payload))
                    ended.delays.append(_delay(publication))
                case Stage.DEAD_LETTER:
                    ended.letters.append(_letter(publication))
                case Stage.ANSWER:
                    ended.answers.append(publication.payload)
                case Stage.OUTPUT:
                    ended.outputs += Rows(frames.decode(publication.payload)).data()
        return frames.concat(again)


def _delay(publication: Publication) -> int:
    """Milliseconds, rounded as due times are."""
    return 0 if publication.due is None else publication.due - int(NOW.timestamp() * 1000)


def _letter(publication: Publication) -> Letter:
    return Letter.from_message(publication.payload, publication.headers)


def messages(values: Sequence[bytes], **columns: object) -> pa.RecordBatch:
    """Rows of messages from a source."""
    total = len(values)
    full = {
        name: given if isinstance(given, list) else [given] * total
        for name, given in columns.items()
    }
    ids = [f"in-{number}" for number in range(total)]
    return frames.batch_of({"id": ids, "value": values, "event_time": [NOW] * total} | full, total)
