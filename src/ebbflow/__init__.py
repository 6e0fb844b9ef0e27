"""Message pipelines on Apache Spark with a decision for every single message.

from ebbflow import Datum, Message, Nack, Pipeline
from ebbflow.connectors import Generator, Log

def enrich(datum: Datum) -> Message:
    if not ready(datum):
        raise Nack("customer not known yet", delay="700ms")
    return Message(datum.value.upper())

Pipeline("orders").source("in", Generator(messages=100)).map("enrich", enrich).sink(
    "out", Log()
).run(drain=True)

The public names; import each from the module that lists it:

    ebbflow                building      Pipeline MonoVertex Function Backoff Limits
                           user code     Datum Message Response Status nack Nack NackOptions
                                         Unavailable Source SourceMessage NackOffset
                           a run         PipelineRun Summary Counts Watcher
                           dead letters  DeadLetters
                           errors        EbbflowError SetupError SpecError
    ebbflow.builders       settings      Audit Breaker InterStepBuffer NatsStore OnUnavailable
                                         Publish
                           builders      Pipeline MonoVertex
    ebbflow.deadletters    dead letters  DeadLetters StoredLetter Letter LetterFilter LetterPage
                                         LetterEdit ReplayResult EarlierDeath
    ebbflow.operations     answers       answers StoredAnswers Answer ServingStore
                           audit         query_audit AuditResult
    ebbflow.status         a run         PipelineStatus VertexStatus
    ebbflow.domain.errors  any error     EbbflowError SetupError AccessError JetStreamUnavailable
                                         EngineLost SpecError Problem TargetError SourceError
                                         CallTimeout ContractViolation MessageTooLarge Unavailable
    ebbflow.connectors     connectors    Generator Kafka Log …: see there
    ebbflow.publishing     publishing    Publisher AsyncPublisher Outgoing Ack PublishOptions Login
                           errors        PublishError NoStreamResponse PublishTimeout BufferFull
                                         PermanentPublishError
    ebbflow.client         asking        Client AsyncClient Answered RequestStatus RequestStep
                                         RequestFailure
                           errors        RequestError RequestRefused RequestFailed AnswerPending
                                         RequestInDoubt UnknownRequest
    ebbflow.datasource     any Spark job register JetStreamDataSource
                           errors        DataSourceError DataLoss
    ebbflow.testing        tests         see there

Everything else is internal: other modules and other names in them may change in any version. The
command ``ebbflow`` and the fields of a pipeline in YAML are public as well.

Importing this package loads neither Spark nor NATS: every Spark worker does it. A name that needs
one of them is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ebbflow.builders import MonoVertex, Pipeline
from ebbflow.domain import __version__
from ebbflow.domain.code import Function
from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import EbbflowError, SetupError, SpecError, Unavailable
from ebbflow.domain.message import (
    Datum,
    Message,
    Nack,
    NackOptions,
    Response,
    Status,
    nack,
)
from ebbflow.domain.outcome import Counts
from ebbflow.domain.spelling import nearest
from ebbflow.domain.user_source import NackOffset, Source, SourceMessage
from ebbflow.spec.typed import Limits

if TYPE_CHECKING:
    from ebbflow.deadletters import DeadLetters
    from ebbflow.operations.pipeline_run import PipelineRun
    from ebbflow.status.run_report import Summary, Watcher

__all__ = [
    "Backoff",
    "Counts",
    "Datum",
    "DeadLetters",
    "EbbflowError",
    "Function",
    "Limits",
    "Message",
    "MonoVertex",
    "Nack",
    "NackOffset",
    "NackOptions",
    "Pipeline",
    "PipelineRun",
    "Response",
    "SetupError",
    "Source",
    "SourceMessage",
    "SpecError",
    "Status",
    "Summary",
    "Unavailable",
    "Watcher",
    "__version__",
    "nack",
]

_IMPORTED_WHEN_USED = {
    "DeadLetters": "ebbflow.deadletters",
    "PipelineRun": "ebbflow.operations.pipeline_run",
    "Summary": "ebbflow.status.run_report",
    "Watcher": "ebbflow.status.run_report",
}

_MOVED = {
    "ebbflow.builders": "Audit Breaker InterStepBuffer NatsStore OnUnavailable Publish",
    "ebbflow.deadletters": "EarlierDeath Letter LetterEdit LetterFilter LetterPage ReplayResult "
    "StoredLetter",
    "ebbflow.domain.errors": "AccessError CallTimeout ContractViolation EngineLost "
    "JetStreamUnavailable MessageTooLarge Problem SourceError TargetError",
    "ebbflow.operations": "Answer ServingStore StoredAnswers answers",
    "ebbflow.status": "PipelineStatus VertexStatus",
}
"""Names that have moved from this package, by their new module."""

_REPLACED = {
    "RowResponse": "write Response, whose class methods need no id in a columnar sink",
    **{
        name: f"write: from {module} import {name}"
        for module, names in _MOVED.items()
        for name in names.split()
    },
}
"""Names that this package no longer has, and what to write instead."""


def __getattr__(name: str) -> Any:
    """Imports a public name that needs NATS or Arrow when it is first used."""
    if name in _REPLACED:
        # Not an AttributeError, whose text ``from ebbflow import ...`` would not show.
        raise ImportError(f"ebbflow has no {name} any more; {_REPLACED[name]}")
    if name not in _IMPORTED_WHEN_USED:
        meant = None if name.startswith("_") else nearest(name, __all__)
        if meant is not None:
            raise ImportError(f"ebbflow has no {name}; did you mean {meant!r}?")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_IMPORTED_WHEN_USED[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
