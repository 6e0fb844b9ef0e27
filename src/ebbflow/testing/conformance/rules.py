"""Rules that a connector has to keep, and what is told about one that does not.

A rule is a function of a trial with a sentence as its docstring. It looks at what the trial has
seen and raises ``RuleBroken``, or ``unittest.SkipTest`` where it does not apply, which pytest shows
as skipped. As a parameter of a test it is known by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import IntEnum
from typing import Any, Generic, Protocol, TypeVar
from unittest import SkipTest

from ebbflow.testing.conformance.under_test import UnderTest

_SHOWN = 8


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
