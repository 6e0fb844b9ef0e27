"""Connectors under test: their author says how to reach the system on the other side.

``SourceUnderTest`` puts messages into the outside system; ``SinkUnderTest`` looks at what has
landed there. Everything else, the pipelines and their user code, is the suite's. Attributes say
what the outside system cannot do, so that no rule asks for it; a rule that makes no sense for a
system is waived by name, with a reason that the report shows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ebbflow.domain.code import Code, SinkMode


@dataclass(frozen=True, slots=True)
class Sample:
    """One message of the suite: what is put into a source, or has landed in a sink's target."""

    value: bytes
    keys: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


class Full(Exception):
    """The system takes no more at the moment; the suite tries again soon.

    ``taken`` is how many of the samples of the call, from the first on, it has taken.
    """

    def __init__(self, taken: int = 0) -> None:
        super().__init__(taken)
        self.taken = taken


class Refused(Exception):
    """The system says that it cannot take a sample, and why. The sample is then not expected."""


class UnderTest:
    """The base of both; attributes may be set on the class or on an instance."""

    keeps_keys: bool = False
    """True if the keys of a message come out as they went in."""

    keeps_headers: bool = False
    """True if the headers of a message come out as they went in."""

    empty_values: bool = True
    """True if a message may have an empty value."""

    largest: int = 1_000_000
    """The largest value, in bytes, that is to arrive; at most about eight million."""

    waived: Mapping[str, str] = MappingProxyType({})
    """Rules that make no sense for this system: the rule's name → why, for the report."""

    def left_behind(self) -> Sequence[str]:
        """Returns what the connector has left in the outside system after a stop, one line each.

        Connections that are still open, subscriptions, locks. The suite looks for processes,
        threads and listening sockets itself.
        """
        return ()


class SourceUnderTest(UnderTest, ABC):
    """A source and the outside system it reads from, in the hands of the suite."""

    keeps_waiting: bool = True
    """True if what is put while no pipeline runs is there when one starts."""

    flood: int = 42_000
    """The number of small messages that are put into a pipeline that is blocked."""

    lateness: float = 3.0
    """Seconds by which a redelivery may come later than its delay says.

    The time that the pipeline takes from the source to the sink comes on top.
    """

    @abstractmethod
    def source(self) -> Code | Mapping[str, Any]:
        """Returns the source for ``Pipeline(...).source("in", ...)``: code, or a kind with fields.

        A mapping is a kind: ``{"http": {"port": 8443}}``.
        """

    @abstractmethod
    def put(self, samples: Sequence[Sample]) -> None:
        """Gives these to the outside system; returns when it keeps them whatever happens.

        Several threads call it at once. Raises ``Full`` when it takes no more at the moment, and
        ``Refused`` when it cannot take a sample at all; odd samples come one at a time.
        """

    def waiting(self) -> int | None:
        """Returns how many messages of the outside system the pipeline has not got yet.

        ``None`` where that cannot be known.
        """
        return None

    def unsettled(self) -> int | None:
        """Returns how many messages the outside system would give again: 0 when all is done.

        ``None`` where that cannot be known.
        """
        return None


class SinkUnderTest(UnderTest, ABC):
    """A sink and the target it writes to, in the hands of the suite."""

    can_refuse: bool = False
    """True if ``refuse`` does something."""

    can_go_down: bool = False
    """True if ``go_down`` and ``come_up`` do something."""

    mode: SinkMode = "batch"
    """The mode of the sink, if it is code."""

    writes_twice: bool = False
    """True if a message may land twice when its sink was told to stop or its target failed."""

    @abstractmethod
    def sink(self) -> Code | Mapping[str, Any]:
        """Returns the sink for ``Pipeline(...).sink("out", ...)``: code, or a kind with fields."""

    @abstractmethod
    def landed(self) -> Sequence[Sample] | None:
        """Returns all that has landed so far, on a running pipeline; ``None`` if nobody knows."""

    def heard(self, line: str) -> None:
        """Hears a line that the run has printed; for sinks that print."""

    def refuse(self, values: Collection[bytes]) -> None:
        """Makes the target refuse messages with these values from now on, and only these."""

    def go_down(self) -> None:
        """Makes the target fail whatever is written to it, until it comes up again."""

    def come_up(self) -> None:
        """Makes the target work again."""
