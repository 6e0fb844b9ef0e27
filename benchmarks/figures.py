"""All figures of a benchmark: as they are measured, stored as JSON, and read back.

Each part is a separate run. A part that is measured again replaces only its own figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.calls import CallCost
from benchmarks.contest import Case, Round
from benchmarks.cores import OnCores
from benchmarks.growth import Point
from benchmarks.latency import Latency
from benchmarks.low_rates import LowRate
from benchmarks.observed import ObservedCase, ObservedRound
from benchmarks.serving import Served
from benchmarks.start import Shares


@dataclass
class Figures:
    """All figures; those that were not measured are empty.

    ``taken`` says when, by part. ``left_out`` says which contestants are missing, and why.
    """

    cases: list[Case] = field(default_factory=list)
    calls: list[CallCost] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    points: list[list[Point]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    idle: Shares | None = None
    low_rates: list[LowRate] = field(default_factory=list)
    cores: list[OnCores] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    observed: list[ObservedCase] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    taken: dict[str, str] = field(default_factory=dict)

    def of(self, *jobs: str) -> list[Case]:
        """Returns the cases of these jobs."""
        return [case for case in self.cases if case.job in jobs]

    def over(self, earlier: Figures) -> Figures:
        """Returns these figures, and the earlier ones of what was not measured now."""
        parts = {case.part for case in self.cases}
        kept = [case for case in earlier.cases if case.part not in parts]
        merged = {
            one.name: getattr(self, one.name) or getattr(earlier, one.name) for one in fields(self)
        }
        merged |= {"cases": kept + self.cases, "taken": earlier.taken | self.taken}
        return Figures(**merged | {"left_out": self.left_out})


def keep(figures: Figures, file: Path, **about: Any) -> None:
    """Writes the figures, with ``about``: facts about them."""
    text = json.dumps({**about, **asdict(figures)}, indent=1)
    file.write_text(text + "\n", encoding="utf-8")


def read(file: Path) -> Figures:
    """Returns the stored figures; none if there are none, or in another format."""
    if not file.exists():
        return Figures()
    kept = json.loads(file.read_text(encoding="utf-8"))
    known = {one.name for one in fields(Figures)}
    values = {name: value for name, value in kept.items() if name in known}
    try:
        return Figures(**{name: _READ.get(name, _as_is)(value) for name, value in values.items()})
    except TypeError:  # an earlier version of the benchmark had other facts
        return Figures()


def _as_is(value: Any) -> Any:
    return value


def _case(value: dict[str, Any]) -> Case:
    return Case(**value | {"rounds": [Round(**one) for one in value["rounds"]]})


def _low_rate(value: dict[str, Any]) -> LowRate:
    return LowRate(**value | {"shares": Shares(**value["shares"])})


def _observed(value: dict[str, Any]) -> ObservedCase:
    return ObservedCase(**value | {"rounds": [ObservedRound(**one) for one in value["rounds"]]})


def _points(values: Sequence[Sequence[dict[str, Any]]]) -> list[list[Point]]:
    return [[Point(**one) for one in rounds] for rounds in values]


_READ: dict[str, Callable[[Any], Any]] = {
    "cases": lambda values: [_case(one) for one in values],
    "calls": lambda values: [CallCost(**one) for one in values],
    "latencies": lambda values: [Latency(**one) for one in values],
    "points": _points,
    "idle": lambda value: Shares(**value) if value else None,
    "low_rates": lambda values: [_low_rate(one) for one in values],
    "cores": lambda values: [OnCores(**one) for one in values],
    "served": lambda values: [Served(**one) for one in values],
    "observed": lambda values: [_observed(one) for one in values],
}
