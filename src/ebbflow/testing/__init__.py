"""Testing what was written for Ebbflow: handlers without Spark, connectors against all rules.

``run_map`` and ``run_sink`` call a handler as a vertex would and need neither Spark nor NATS.
``MemorySource`` and ``MemorySink`` are for whole pipelines on local Spark. ``SOURCE_RULES`` and
``SINK_RULES`` are what every connector has to pass: see ``conformance``. Programs and tests import
it, and nothing else in Ebbflow does. Start with ``handlers``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from ebbflow.testing.conformance.rules import (
    Full,
    Refused,
    RuleBroken,
    Sample,
    SinkUnderTest,
    SourceUnderTest,
)
from ebbflow.testing.handlers import Result, run_map, run_sink
from ebbflow.testing.memory import MemorySink, MemorySource

if TYPE_CHECKING:
    from ebbflow.testing.background_run import local_spark
    from ebbflow.testing.conformance.sinks import SINK_RULES, SinkTrial, check_sink
    from ebbflow.testing.conformance.sources import SOURCE_RULES, SourceTrial, check_source

_LATER = {
    "background_run": ("local_spark",),
    "conformance.sinks": ("SINK_RULES", "SinkTrial", "check_sink"),
    "conformance.sources": ("SOURCE_RULES", "SourceTrial", "check_source"),
}
"""Imported only when it is used: it brings Spark and NATS with it."""

__all__ = [
    "SINK_RULES",
    "SOURCE_RULES",
    "DeadLetter",
    "Done",
    "Dropped",
    "FellBack",
    "Full",
    "MemorySink",
    "MemorySource",
    "Redeliver",
    "Refused",
    "Result",
    "Retry",
    "RuleBroken",
    "Sample",
    "Served",
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
]


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
