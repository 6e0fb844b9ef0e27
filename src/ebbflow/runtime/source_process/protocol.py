"""The words that a vertex's task and its source's process say to each other.

The task says ``Greet`` first. From then on the process reads and gives messages without being
asked, as long as not too many are unsettled, and between two reads it hears what is settled. So
neither waits for the other. The task has at most one ``Settle`` on its way at a time. After a
``Failed`` the process reads nothing before it has heard a further word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from ebbflow.engine.blame import Outage
from ebbflow.engine.inlet import NACKS, HandedBack
from ebbflow.engine.source_columns import OFFSETS, ROWS
from ebbflow.engine.system_errors import SystemErrors
from ebbflow.usercode.printing import Printed

_ACKS = pa.schema([pa.field("offset", OFFSETS, nullable=False)])


@dataclass(frozen=True, slots=True)
class Order:
    """The order to a source's process; comes through its standard input.

    ``limit`` and ``timeout`` (in seconds) are those of one read, ``columns_limit`` is the limit of
    a source that returns columns. ``keeper`` is the process whose end ends the source's.
    """

    vertex: str
    partition: int
    code: bytes
    search: str | None
    path: list[str]
    socket: str
    systems: SystemErrors
    keeper: int
    limit: int
    columns_limit: int
    timeout: float


# --- said by the task ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Greet:
    """The first word of every task. The answer is ``Hello``."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Messages that are settled, and messages that the source is to give again, both in columns.

    The answer is ``Heard``.
    """

    acks: pa.Buffer
    nacks: pa.Buffer

    @classmethod
    def of(cls, ends: HandedBack) -> Settle:
        """Returns the word about the ends of some chunks."""
        acks = pa.RecordBatch.from_arrays([ends.acks], schema=_ACKS)
        return cls(acks.serialize(), ends.nacks.serialize())

    def read_acks(self) -> pa.BinaryArray:
        """Returns the offsets of the messages that are settled."""
        return pa.ipc.read_record_batch(self.acks, _ACKS).column("offset")

    def read_nacks(self) -> pa.RecordBatch:
        """Returns ``NACKS``."""
        return pa.ipc.read_record_batch(self.nacks, NACKS)


@dataclass(frozen=True, slots=True)
class Resume:
    """Reads on after an outage. The answer is whatever the next read comes to."""


@dataclass(frozen=True, slots=True)
class End:
    """Closes the source and ends the process. The answer is that the line is closed."""


Request = Greet | Settle | Resume | End

# --- said by the process ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The source is there: whether nacks go to it, and which partitions it reads.

    ``exhausted`` when it has nothing more to give and all it gave is settled.
    """

    redelivers: bool
    exhausted: bool
    partitions: list[int]


@dataclass(frozen=True, slots=True)
class Given:
    """Messages, in columns. The source is not exhausted."""

    rows: pa.Buffer

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> Given:
        """Returns the word that gives these ``ROWS``."""
        return cls(rows.serialize())

    def read_rows(self) -> pa.RecordBatch:
        """Returns ``ROWS``."""
        return pa.ipc.read_record_batch(self.rows, ROWS)


@dataclass(frozen=True, slots=True)
class Told:
    """The state of the source after a read, for people and for a drain.

    ``printed`` is what the source has printed since the last time, ``pending`` is how many
    messages wait to be read, as far as the source knows.
    """

    exhausted: bool
    printed: list[Printed]
    pending: int | None


@dataclass(frozen=True, slots=True)
class Heard:
    """The source has heard what was settled. ``exhausted`` as in ``Hello``."""

    exhausted: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The source raised: ``what``, in words, while it did what ``during`` says.

    With an ``outage`` its system is away: it has been closed and is opened anew when it is next
    asked for something.
    """

    during: Literal["greet", "settle", "read"]
    what: str
    trace: str
    outage: Outage | None = None


Answer = Hello | Given | Told | Heard | Failed
