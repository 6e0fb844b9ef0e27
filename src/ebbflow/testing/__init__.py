"""Testing what was written for Ebbflow: handlers without Spark, connectors against all rules.

``run_map`` and ``run_sink`` call a handler as a vertex would and need neither Spark nor NATS.
``MemorySource`` and ``MemorySink`` are for whole pipelines on local Spark. ``SOURCE_RULES`` and
``SINK_RULES`` are what every connector has to pass: see ``conformance``.
"""

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
    from ebbflow.testing.conformance.suite import (
        SINK_RULES,
        SOURCE_RULES,
        SinkTrial,
        SourceTrial,
        check_sink,
        check_source,
        local_spark,
    )

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
    """The conformance suite, imported only when it is used: it brings Spark and NATS with it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ebbflow.testing.conformance import suite as conformance

    return getattr(conformance, name)
