"""Tests for code written for Ebbflow: pipelines in memory, handlers, connectors.

``simulate`` runs a whole pipeline in memory on a virtual clock, without Spark and NATS.
``run_map`` and ``run_sink`` call a handler as a vertex would and need neither Spark nor NATS.
``MemorySource`` and ``MemorySink`` are for whole pipelines on local Spark. Every connector has to
pass ``SOURCE_RULES`` and ``SINK_RULES``: see ``conformance``. Programs and tests import this
package; within Ebbflow only ``ebbflow test`` and ``ebbflow dev`` do. Start with ``simulation``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebbflow.domain.errors import SimulationError
    from ebbflow.domain.outcome import (
        DeadLetter,
        Done,
        Dropped,
        FellBack,
        Redeliver,
        Retry,
        Served,
        Succeeded,
    )
    from ebbflow.testing.background_run import local_spark
    from ebbflow.testing.conformance.rules import (
        Full,
        Refused,
        RuleBroken,
        Sample,
        SinkUnderTest,
        SourceUnderTest,
    )
    from ebbflow.testing.conformance.sinks import SINK_RULES, SinkTrial, check_sink
    from ebbflow.testing.conformance.sources import SOURCE_RULES, SourceTrial, check_source
    from ebbflow.testing.handlers import Result, run_map, run_sink
    from ebbflow.testing.incidents import Crash, Outage, Pause
    from ebbflow.testing.memory import MemorySink, MemorySource
    from ebbflow.testing.simulation import Simulation, simulate

_OUTCOMES = (
    "DeadLetter", "Done", "Dropped", "FellBack", "Redeliver", "Retry", "Served", "Succeeded",
)  # fmt: skip
_RULES = ("Full", "Refused", "RuleBroken", "Sample", "SinkUnderTest", "SourceUnderTest")
_IMPORTED_WHEN_USED = {
    "domain.errors": ("SimulationError",),
    "domain.outcome": _OUTCOMES,
    "testing.background_run": ("local_spark",),
    "testing.conformance.rules": _RULES,
    "testing.conformance.sinks": ("SINK_RULES", "SinkTrial", "check_sink"),
    "testing.conformance.sources": ("SOURCE_RULES", "SourceTrial", "check_source"),
    "testing.handlers": ("Result", "run_map", "run_sink"),
    "testing.incidents": ("Crash", "Outage", "Pause"),
    "testing.memory": ("MemorySink", "MemorySource"),
    "testing.simulation": ("Simulation", "simulate"),
}
"""The names that each module defines. Lazy, because every pytest run imports this package."""

__all__ = [
    "SINK_RULES",
    "SOURCE_RULES",
    "Crash",
    "DeadLetter",
    "Done",
    "Dropped",
    "FellBack",
    "Full",
    "MemorySink",
    "MemorySource",
    "Outage",
    "Pause",
    "Redeliver",
    "Refused",
    "Result",
    "Retry",
    "RuleBroken",
    "Sample",
    "Served",
    "Simulation",
    "SimulationError",
    "SinkTrial",
    "SinkUnderTest",
    "SourceTrial",
    "SourceUnderTest",
    "Succeeded",
    "check_sink",
    "check_source",
    "local_spark",
    "run_map",
    "run_sink",
    "simulate",
]


def __getattr__(name: str) -> Any:
    for module, names in _IMPORTED_WHEN_USED.items():
        if name in names:
            return getattr(import_module(f"ebbflow.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
