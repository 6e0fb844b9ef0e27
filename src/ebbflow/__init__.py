"""Message pipelines on Apache Spark with a decision for every single message.

from ebbflow import Datum, Message, Pipeline, nack

def enrich(datum: Datum) -> Message:
    if not ready(datum):
        nack(delay="700ms", reason="customer not known yet")
    return Message(datum.value.upper())

Pipeline("orders").source("in", generator={"messages": 100}).map("enrich", enrich).sink(
    "out", log=True
).run(drain=True)

The public names, each to be imported from the module that lists it:

    ebbflow             building      Pipeline MonoVertex Backoff Function
                        user code     Datum Message Response RowResponse Status nack Nack
                                      NackOptions Source SourceMessage NackOffset ServingStore
                        a run         Summary Counts Watcher PipelineStatus VertexStatus
                        dead letters  DeadLetters StoredLetter Letter LetterFilter LetterPage
                                      LetterEdit ReplayResult EarlierDeath
                        answers       answers StoredAnswers Answer
                        errors        EbbflowError SetupError AccessError JetStreamUnavailable
                                      EngineLost SpecError Problem TargetError SourceError
                                      CallTimeout ContractViolation MessageTooLarge Unavailable
    ebbflow.publishing  publishing    Publisher AsyncPublisher Outgoing Ack PublishOptions Login
                        errors        PublishError NoStreamResponse PublishTimeout BufferFull
                                      PermanentPublishError
    ebbflow.client      asking        Client AsyncClient Answered RequestStatus RequestStep
                                      RequestFailure
                        errors        RequestError RequestRefused RequestFailed AnswerPending
                                      RequestInDoubt UnknownRequest
    ebbflow.datasource  any Spark job register JetStreamDataSource
                        errors        DataSourceError DataLoss
    ebbflow.testing     tests         see there

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
from ebbflow.domain.errors import (
    AccessError,
    CallTimeout,
    ContractViolation,
    EbbflowError,
    EngineLost,
    JetStreamUnavailable,
    MessageTooLarge,
    Problem,
    SetupError,
    SourceError,
    SpecError,
    TargetError,
    Unavailable,
)
from ebbflow.domain.message import (
    Datum,
    Message,
    Nack,
    NackOptions,
    Response,
    RowResponse,
    Status,
    nack,
)
from ebbflow.domain.outcome import Counts
from ebbflow.domain.user_source import NackOffset, Source, SourceMessage

if TYPE_CHECKING:
    from ebbflow.deadletters import (
        DeadLetters,
        LetterEdit,
        LetterFilter,
        LetterPage,
        ReplayResult,
        StoredLetter,
    )
    from ebbflow.engine.answers import Answer
    from ebbflow.engine.dead_letter import EarlierDeath, Letter
    from ebbflow.operations.stored_answers import StoredAnswers, answers
    from ebbflow.status.model import PipelineStatus, VertexStatus
    from ebbflow.status.run_report import Summary, Watcher
    from ebbflow.streams.answer_bucket import ServingStore

__all__ = [
    "AccessError",
    "Answer",
    "Backoff",
    "CallTimeout",
    "ContractViolation",
    "Counts",
    "Datum",
    "DeadLetters",
    "EarlierDeath",
    "EbbflowError",
    "EngineLost",
    "Function",
    "JetStreamUnavailable",
    "Letter",
    "LetterEdit",
    "LetterFilter",
    "LetterPage",
    "Message",
    "MessageTooLarge",
    "MonoVertex",
    "Nack",
    "NackOffset",
    "NackOptions",
    "Pipeline",
    "PipelineStatus",
    "Problem",
    "ReplayResult",
    "Response",
    "RowResponse",
    "ServingStore",
    "SetupError",
    "Source",
    "SourceError",
    "SourceMessage",
    "SpecError",
    "Status",
    "StoredAnswers",
    "StoredLetter",
    "Summary",
    "TargetError",
    "Unavailable",
    "VertexStatus",
    "Watcher",
    "__version__",
    "answers",
    "nack",
]

_IMPORTED_WHEN_USED = {
    "Answer": "ebbflow.engine.answers",
    "DeadLetters": "ebbflow.deadletters",
    "EarlierDeath": "ebbflow.engine.dead_letter",
    "Letter": "ebbflow.engine.dead_letter",
    "LetterEdit": "ebbflow.deadletters",
    "LetterFilter": "ebbflow.deadletters",
    "LetterPage": "ebbflow.deadletters",
    "PipelineStatus": "ebbflow.status.model",
    "ReplayResult": "ebbflow.deadletters",
    "ServingStore": "ebbflow.streams.answer_bucket",
    "StoredAnswers": "ebbflow.operations.stored_answers",
    "StoredLetter": "ebbflow.deadletters",
    "Summary": "ebbflow.status.run_report",
    "VertexStatus": "ebbflow.status.model",
    "Watcher": "ebbflow.status.run_report",
    "answers": "ebbflow.operations.stored_answers",
}


def __getattr__(name: str) -> Any:
    """Imports a public name that brings NATS or Arrow with it, when it is first used."""
    if name not in _IMPORTED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_IMPORTED_WHEN_USED[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
