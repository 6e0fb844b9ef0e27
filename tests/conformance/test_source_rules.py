"""What rules for sources make of what was seen, without a pipeline."""

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
    """A trial whose redeliveries all came so late, and whose pipeline took so long to its sink."""
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
    ("redelivered_after", "passage", "told"),
    [
        (DELAY, 0.0, None),
        (DELAY - 0.01, 0.0, r"10 of 10 redeliveries came before the delay of 0\.4 s was over"),
        (DELAY + 3.1, 0.0, r"10 of 10 redeliveries came later than 3\.4 s after a nack for 0\.4 s"),
        (DELAY + 3.1, 0.5, None),
        (DELAY + 3.1, 0.05, r"came later than 3\.5 s"),
    ],
    ids=["in time", "early", "late", "late on a slow machine", "late all the same"],
)
def test_a_delay_is_honoured_as_soon_as_the_machine_allows(
    redelivered_after: float, passage: float, told: str | None, tmp_path: Path
) -> None:
    trial = seen(tmp_path, redelivered_after, passage)
    if told is None:
        RULES["delays_are_honoured"](trial)
        return
    with pytest.raises(RuleBroken, match=told):
        RULES["delays_are_honoured"](trial)


def test_a_source_that_cannot_be_made_fails_every_rule_at_once(tmp_path: Path) -> None:
    def source() -> Any:
        raise ImportError("no connector 'Mine'")

    under_test: Any = SimpleNamespace(source=source, keeps_waiting=False, waived={})
    trial = SourceTrial(under_test, tmp_path, patience="1m")  # too long to wait for it
    for stage in (SourceStage.FLOW, SourceStage.BLOCKED, SourceStage.ENDED):
        with pytest.raises(ImportError, match="no connector 'Mine'"):
            trial.reach(stage)
