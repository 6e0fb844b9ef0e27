"""How the rules for sources judge what was observed, without a pipeline."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebbflow.testing import SOURCE_RULES, RuleBroken, SourceTrial
from ebbflow.testing.conformance import samples
from ebbflow.testing.conformance.samples import DELAY, name_of
from ebbflow.testing.conformance.sources import Observations, SourceStage

RULES = {rule.__name__: rule for rule in SOURCE_RULES}


def seen(folder: Path, redelivered_after: float, passage: float) -> Any:
    """A trial with redeliveries this late, and a pipeline that takes this long to its sink."""
    observations = Observations(folder / "calls", folder / "arrivals")
    for name in map(name_of, samples.LATER):
        calls = [(name, number * redelivered_after, number + 1, None) for number in range(3)]
        observations.calls_journal.write(*calls)
    for name in map(name_of, samples.PLAIN):
        observations.calls_journal.write((name, 1.0, 1, None))
        observations.arrivals_journal.write((name, [], {}, 1.0 + passage))
    under_test = SimpleNamespace(waived={}, lateness=3.0)
    return SimpleNamespace(
        seen=observations,
        under_test=under_test,
        reach=lambda stage: observations.look(),
        troubles=lambda: "",
    )


@pytest.mark.parametrize(
    ("redelivered_after", "passage", "problem"),
    [
        (DELAY, 0.0, None),
        (DELAY - 0.01, 0.0, r"10 of 10 redeliveries came before the delay of 0\.4 s was over"),
        (DELAY + 3.1, 0.0, r"10 of 10 redeliveries came later than 3\.4 s after a nack for 0\.4 s"),
        (DELAY + 3.1, 0.5, None),
        (DELAY + 3.1, 0.05, r"came later than 3\.5 s"),
    ],
    ids=["in time", "early", "late", "late on a slow machine", "late even for a slow machine"],
)
def test_a_redelivery_may_be_late_only_by_the_slowness_of_the_machine(
    redelivered_after: float, passage: float, problem: str | None, tmp_path: Path
) -> None:
    trial = seen(tmp_path, redelivered_after, passage)
    if problem is None:
        RULES["delays_are_honoured"](trial)
        return
    with pytest.raises(RuleBroken, match=problem):
        RULES["delays_are_honoured"](trial)


def test_a_source_that_cannot_be_created_fails_every_rule_at_once(tmp_path: Path) -> None:
    def source() -> Any:
        raise ImportError("no connector 'Mine'")

    under_test: Any = SimpleNamespace(source=source, keeps_waiting=False, waived={})
    trial = SourceTrial(under_test, tmp_path, patience="1m")  # too long to wait for it
    for stage in (SourceStage.FLOW, SourceStage.BLOCKED, SourceStage.ENDED):
        with pytest.raises(ImportError, match="no connector 'Mine'"):
            trial.reach(stage)
