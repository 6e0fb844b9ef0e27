"""The contract of the conformance suite: connectors under test, and the rules for them.

The author of a connector writes the access to the outside system: ``SourceUnderTest`` puts messages
into it; ``SinkUnderTest`` returns the messages that have landed there. The suite provides the rest:
the pipelines and their user code. Attributes say what the outside system cannot do, so that no rule
requires it. A rule that does not apply to a system is waived by name, with a reason that the report
shows.

A rule is a function of a trial, with a sentence as its docstring. It examines what the trial has
recorded and raises ``RuleBroken``, or ``unittest.SkipTest`` where it does not apply, which pytest
shows as skipped. In the id of a parametrized test it has its name.
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
    """One message of the suite: put into a source, or landed in a sink's target."""

    value: bytes
    keys: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


class Full(Exception):
    """The system is full at the moment; the suite tries again soon.

    ``taken`` is how many samples of the call, from the first on, it has stored.
    """

    def __init__(self, taken: int = 0) -> None:
        super().__init__(taken)
        self.taken = taken


class Refused(Exception):
    """The system rejects a sample, with a reason. The sample is then not expected to arrive."""


class UnderTest:
    """Base class. Set attributes on the class or on an instance."""

    keeps_keys: bool = False
    """True if the keys of a message are preserved."""

    keeps_headers: bool = False
    """True if the headers of a message are preserved."""

    empty_values: bool = True
    """True if a message may have an empty value."""

    largest: int = 1_000_000
    """The largest value, in bytes, that has to arrive; at most about eight million."""

    waived: Mapping[str, str] = MappingProxyType({})
    """Rules that do not apply to this system: the rule's name → the reason, for the report."""

    def left_behind(self) -> Sequence[str]:
        """Returns what the connector left in the outside system after a stop, one line each.

        For example open connections, subscriptions and locks. The suite itself looks for processes,
        threads and listening sockets.
        """
        return ()


class SourceUnderTest(UnderTest, ABC):
    """A source to test, and access to the outside system that it reads from."""

    keeps_waiting: bool = True
    """True if messages that are put while no pipeline runs are there when one starts."""

    flood: int = 42_000
    """The number of small messages to put while the pipeline is blocked."""

    lateness: float = 3.0
    """Seconds by which a redelivery may be later than its delay.

    The time that messages need from the source to the sink is added to it.
    """

    @abstractmethod
    def source(self) -> Code | Connector:
        """Returns the source for ``Pipeline(...).source("in", ...)``: code, or a connector."""

    @abstractmethod
    def put(self, samples: Sequence[Sample]) -> None:
        """Puts samples into the outside system; returns when they are stored durably.

        Several threads call it at once. Raise ``Full`` when the system is full at the moment, and
        ``Refused`` when it rejects a sample. Odd samples are put one at a time.
        """

    def waiting(self) -> int | None:
        """Returns how many messages in the outside system the pipeline has not read yet.

        ``None`` if that is unknown.
        """
        return None

    def unsettled(self) -> int | None:
        """Returns how many messages the outside system would redeliver: 0 when all are done.

        ``None`` if that is unknown.
        """
        return None


class SinkUnderTest(UnderTest, ABC):
    """A sink to test, and access to the target that it writes to."""

    can_refuse: bool = False
    """True if ``refuse`` is implemented."""

    can_go_down: bool = False
    """True if ``go_down`` and ``come_up`` are implemented."""

    mode: SinkMode = "batch"
    """The mode of the sink, if it is user code."""

    writes_twice: bool = False
    """True if a message may land twice when the sink is stopped or the target fails."""

    @abstractmethod
    def sink(self) -> Code | Connector:
        """Returns the sink for ``Pipeline(...).sink("out", ...)``: code, or a connector."""

    @abstractmethod
    def landed(self) -> Sequence[Sample] | None:
        """Returns all messages that have landed so far; ``None`` if that is unknown.

        Called while the pipeline runs.
        """

    def on_line(self, line: str) -> None:
        """Receives a line that the run printed; for sinks that print."""

    def refuse(self, values: Collection[bytes]) -> None:
        """Makes the target refuse messages with these values, and only these, from now on."""

    def go_down(self) -> None:
        """Makes all writes to the target fail until ``come_up``."""

    def come_up(self) -> None:
        """Makes the target work again."""


# --- rules --------------------------------------------------------------------------------------


class RuleBroken(AssertionError):
    """A connector breaks a rule of the suite. The text names the rule and the evidence."""


class ConformanceTrial(Protocol):
    """Tests a connector, stage by stage."""

    @property
    def under_test(self) -> UnderTest:
        """The connector to test."""

    def reach(self, stage: Any) -> None:
        """Runs the stages up to this one that have not run yet."""

    def troubles(self) -> str:
        """Returns other problems, for the text of a broken rule."""


AnyTrial = TypeVar("AnyTrial", bound=ConformanceTrial)


class Rule(Generic[AnyTrial]):
    """One rule. ``stage`` is the last stage that a trial has to run before the check."""

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
    """Makes a function a rule and adds it to a list."""

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
    """Raises if there are any wrong cases, with their count and the first few."""
    if wrong:
        total = of if isinstance(of, int) else len(of)
        some = ", ".join(str(case) for case in list(wrong)[:_SHOWN])
        more = ", …" if len(wrong) > _SHOWN else ""
        raise RuleBroken(f"{len(wrong)} of {total} {what}: {some}{more}")
