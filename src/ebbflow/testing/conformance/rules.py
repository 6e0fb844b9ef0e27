"""The contract of the conformance suite: connectors under test, and rules that they have to keep.

The author of a connector says how to reach the system on the other side: ``SourceUnderTest`` puts
messages into the outside system; ``SinkUnderTest`` looks at what has landed there. Everything else,
the pipelines and their user code, is the suite's. Attributes say what the outside system cannot do,
so that no rule asks for it; a rule that makes no sense for a system is waived by name, with a
reason that the report shows.

A rule is a function of a trial with a sentence as its docstring. It looks at what the trial has
seen and raises ``RuleBroken``, or ``unittest.SkipTest`` where it does not apply, which pytest shows
as skipped. As a parameter of a test it is known by its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar
from unittest import SkipTest

from ebbflow.connectors import Connector
from ebbflow.domain.code import Code, SinkMode

_SHOWN = 8


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
    def source(self) -> Code | Connector:
        """Returns the source for ``Pipeline(...).source("in", ...)``: code, or a connector."""

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
        """Returns how many messages the outside system would redeliver: 0 when all is done.

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
    """True if a message may land twice when its sink is stopped or its target fails."""

    @abstractmethod
    def sink(self) -> Code | Connector:
        """Returns the sink for ``Pipeline(...).sink("out", ...)``: code, or a connector."""

    @abstractmethod
    def landed(self) -> Sequence[Sample] | None:
        """Returns all that has landed so far, on a running pipeline; ``None`` if it is unknown."""

    def heard(self, line: str) -> None:
        """Hears a line that the run has printed; for sinks that print."""

    def refuse(self, values: Collection[bytes]) -> None:
        """Makes the target refuse messages with these values from now on, and only these."""

    def go_down(self) -> None:
        """Makes the target fail whatever is written to it, until it comes up again."""

    def come_up(self) -> None:
        """Makes the target work again."""


# --- rules --------------------------------------------------------------------------------------


class RuleBroken(AssertionError):
    """A connector has broken a rule of the suite; the text says which, and what was seen."""


class ConformanceTrial(Protocol):
    """A connector that is being tried out, stage by stage."""

    @property
    def under_test(self) -> UnderTest:
        """The connector that is tried out."""

    def reach(self, stage: Any) -> None:
        """Goes through the stages up to this one that are not done yet."""

    def troubles(self) -> str:
        """Returns what else went wrong, for the text of a broken rule."""


AnyTrial = TypeVar("AnyTrial", bound=ConformanceTrial)


class Rule(Generic[AnyTrial]):
    """One rule. ``stage`` is how far a trial has to go before it can be looked at."""

    def __init__(self, check: Callable[[AnyTrial], None], stage: IntEnum) -> None:
        self.__name__ = check.__name__
        self.__doc__ = check.__doc__
        self._check = check
        self._stage = stage

    def __call__(self, trial: AnyTrial) -> None:
        """Checks the rule; raises ``RuleBroken`` if the connector breaks it."""
        connector = type(trial.under_test).__name__
        if (why := trial.under_test.waived.get(self.__name__)) is not None:
            raise SkipTest(f"{connector}: {why}")
        trial.reach(self._stage)
        try:
            self._check(trial)
        except RuleBroken as broken:
            sentence = " ".join((self.__doc__ or "").split())
            text = f"{connector} breaks {self.__name__}: {sentence}\n{broken}{trial.troubles()}"
            raise RuleBroken(text) from None

    def __repr__(self) -> str:
        return self.__name__


def rule(
    stage: IntEnum, listed: list[Rule[AnyTrial]]
) -> Callable[[Callable[[AnyTrial], None]], Rule[AnyTrial]]:
    """Makes a function a rule and puts it on the list."""

    def add(check: Callable[[AnyTrial], None]) -> Rule[AnyTrial]:
        listed.append(Rule(check, stage))
        return listed[-1]

    return add


def check_all(rules: Iterable[Rule[AnyTrial]], trial: AnyTrial) -> None:
    """Checks every rule; raises one ``RuleBroken`` with all that are broken."""
    broken: list[str] = []
    for rule_to_check in rules:
        try:
            rule_to_check(trial)
        except SkipTest:
            continue
        except RuleBroken as error:
            broken.append(str(error))
    if broken:
        raise RuleBroken("\n\n".join(broken))


def expect_none(wrong: Collection[object], of: Sequence[object] | int, what: str) -> None:
    """Raises if there are any, with how many of how many, and the first few."""
    if wrong:
        total = of if isinstance(of, int) else len(of)
        some = ", ".join(str(case) for case in list(wrong)[:_SHOWN])
        more = ", …" if len(wrong) > _SHOWN else ""
        raise RuleBroken(f"{len(wrong)} of {total} {what}: {some}{more}")
