"""Message pipelines on Apache Spark with a decision for every single message.

from ebbflow import Datum, Message, Pipeline, nack

def enrich(datum: Datum) -> Message:
    if not ready(datum):
        nack(delay="700ms", reason="customer not known yet")
    return Message(datum.value.upper())

Pipeline("orders").source("in", generator={"messages": 100}).map("enrich", enrich).sink(
    "out", log=True
).run(drain=True)
"""

from ebbflow.errors import (
    ContractViolation,
    EbbflowError,
    MessageTooLarge,
    SetupError,
    SourceError,
    SpecError,
    TargetError,
    Unavailable,
)
from ebbflow.message import Datum, Message, Response
from ebbflow.monovertex import MonoVertex
from ebbflow.nacks import Nack, NackOptions, nack
from ebbflow.pipeline import Pipeline
from ebbflow.source import NackOffset, Source, SourceMessage
from ebbflow.version import __version__

__all__ = [
    "ContractViolation",
    "Datum",
    "EbbflowError",
    "Message",
    "MessageTooLarge",
    "MonoVertex",
    "Nack",
    "NackOffset",
    "NackOptions",
    "Pipeline",
    "Response",
    "SetupError",
    "Source",
    "SourceError",
    "SourceMessage",
    "SpecError",
    "TargetError",
    "Unavailable",
    "__version__",
    "nack",
]
