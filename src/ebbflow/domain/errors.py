"""Every error Ebbflow raises, as one small tree.

    EbbflowError
    ├── SetupError               this machine or its configuration: Java, state folder, NATS server
    │   ├── AccessError          the login may not publish or subscribe to a subject
    │   └── JetStreamUnavailable  JetStream does not answer, or has no leader
    ├── EngineLost               Spark's JVM died, and was not replaced
    ├── SpecError                a pipeline that fails lint; carries the problems
    ├── SourceError              a source that raised, or whose process has ended
    ├── TargetError              a ``module:attribute`` that cannot be used as user code
    ├── Unavailable              user code reports that a system that it needs is down
    ├── CallTimeout              user code did not return within ``limits.callTimeout``
    ├── StreamBroken             a function in its own process failed, or its process ended
    ├── ContractViolation        user code broke the rules of its role (see docs/guarantees.md)
    ├── SparkError               an error of Spark or a database about rows or a query
    ├── SimulationError          a pipeline under ``ebbflow.testing.simulate`` that would never end
    ├── MessageTooLarge          a message that no JetStream message can hold
    ├── Fenced                   another task owns this partition now
    ├── DataSourceError          the Spark data source: an option, a column, a stream
    │   └── DataLoss             messages to read are no longer in the stream
    ├── RequestError             a serving pipeline has not answered a request; has its id
    │   ├── RequestRefused       the server did not accept the request
    │   ├── RequestFailed        a message of the request became a dead letter
    │   ├── AnswerPending        no answer yet; the request continues
    │   ├── RequestInDoubt       the connection was lost; the server may have accepted it
    │   └── UnknownRequest       the server has no request with this id
    └── PublishError             JetStream did not confirm a message
        ├── NoStreamResponse     no stream has the subject
        ├── PublishTimeout       no reply before the deadline
        ├── BufferFull           the stream is at its limit
        └── PermanentPublishError  the server refused the message for good

Each keeps its facts as attributes, says what to do next and survives pickling, because
errors travel from Spark's workers to the driver. ``Nack`` is not here: it is an outcome,
not an error (see ``message``). A ``SpecError`` carries ``Problem`` objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ebbflow.domain.durations import Duration, milliseconds
from ebbflow.domain.message import Ack
from ebbflow.domain.spelling import named_options

__all__ = [
    "AccessError",
    "CallTimeout",
    "ContractViolation",
    "EbbflowError",
    "EngineLost",
    "JetStreamUnavailable",
    "MessageTooLarge",
    "Problem",
    "SetupError",
    "SourceError",
    "SpecError",
    "TargetError",
    "Unavailable",
]
"""The public errors, except those exported by ``ebbflow.client`` and other public modules."""


class EbbflowError(Exception):
    """The root of the tree; catching it catches everything Ebbflow raises on purpose.

    Subclasses pass their constructor arguments on to ``Exception`` so that a pickled
    error is rebuilt with the same attributes.
    """


class SetupError(EbbflowError):
    """This machine or its setup is not ready; the text ends with the next step."""

    def __init__(self, what: str, next_step: str = "") -> None:
        super().__init__(what, next_step)
        self.what = what
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.what} {self.next_step}".rstrip()


class AccessError(SetupError):
    """NATS does not let this login publish or subscribe (``verb``) to ``subject``."""

    def __init__(self, server: str, verb: str, subject: str) -> None:
        super().__init__(
            f"NATS at {server} does not let this login {verb} to {subject}.",
            "Give it the permissions that are printed by: ebbflow permissions SPEC",
        )
        self.args = (server, verb, subject)
        self.verb = verb
        self.subject = subject


class JetStreamUnavailable(SetupError):
    """JetStream did not carry out a ``call`` in time: ``problem``."""

    def __init__(self, call: str, seconds: float, problem: str) -> None:
        super().__init__(
            f"JetStream did not carry out {call} within {seconds:g} s: {problem}.",
            "See whether NATS is up; in a cluster, most servers have to be.",
        )
        self.args = (call, seconds, problem)
        self.call = call
        self.problem = problem


class Unavailable(EbbflowError):
    """Raised by user code when a system that it needs is down.

    ``raise Unavailable("the database")`` penalises no message. The vertex closes the user code,
    waits and opens it again; ``retry_after`` is the least time to wait (any ``Duration``; kept in
    milliseconds). ``what`` names the system, as in "waiting for the database". ``tried`` is false
    if user code could not even be opened: then no message can be the cause.
    """

    tried: bool = True

    @named_options
    def __init__(self, what: str, retry_after: Duration | None = None) -> None:
        self.what = str(what)
        self.retry_after = None if retry_after is None else milliseconds(retry_after)
        super().__init__(self.what, retry_after)

    def __str__(self) -> str:
        return self.what


class EngineLost(EbbflowError):
    """Spark's JVM died ``times`` times within minutes, the last time as ``how`` says."""

    def __init__(self, how: str, times: int, next_step: str) -> None:
        super().__init__(how, times, next_step)
        self.how = how
        self.times = times
        self.next_step = next_step

    def __str__(self) -> str:
        often = f" {self.times} times within minutes" if self.times > 1 else ""
        return (
            f"Spark's JVM died{often} ({self.how}). {self.next_step}. "
            "Nothing is lost: the next run continues where this one ended."
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """One line of ``ebbflow lint``. ``line`` and ``column`` count from 1.

    A pipeline built in Python has no file: then ``file`` is empty and ``place`` says in words
    where the problem is.
    """

    file: str
    line: int
    column: int
    code: str
    message: str
    place: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.file else self.place
        return f"{where}: {self.code} {self.message}"


class SpecError(EbbflowError):
    """A pipeline that fails lint. ``problems`` are the lines that ``ebbflow lint`` prints."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class TargetError(EbbflowError):
    """User code named by ``module:attribute`` cannot be imported or is of the wrong kind."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(target, reason)
        self.target = target
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot use {self.target!r}: {self.reason}"


class SourceError(EbbflowError):
    """A source has failed; its vertex is started again. ``trace`` is the place in user code."""

    def __init__(self, vertex: str, what: str, trace: str = "") -> None:
        super().__init__(vertex, what, trace)
        self.vertex = vertex
        self.what = what
        self.trace = trace

    def __str__(self) -> str:
        return f"source {self.vertex}: {self.what}"


class CallTimeout(EbbflowError):
    """User code did not return in time. This counts against the messages of that call.

    Raised in the call itself on a worker, so user code can clean up. The messages are redelivered
    with back-off, each alone, and then become dead letters. It is not a ``TimeoutError``, which
    would count as a system that is down.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return (
            f"the call did not return within callTimeout, {self.seconds:g} s; "
            "make it end sooner, or set limits.callTimeout higher"
        )


class StreamBroken(EbbflowError):
    """A function in its own process ended its stream of responses too early.

    ``code`` is the gRPC status, if the function sent one, ``trace`` the function's own stack, and
    ``wait`` the time after which it asks to be called again, if it does. This counts against the
    message that was being processed, which is redelivered with back-off.
    """

    def __init__(
        self, what: str, code: int | None = None, trace: str = "", wait: Duration | None = None
    ) -> None:
        super().__init__(what, code, trace, wait)
        self.what = what
        self.code = code
        self.trace = trace
        self.wait = wait

    def __str__(self) -> str:
        return self.what

    @property
    def said(self) -> str:
        """The function's own error text; empty if the stream ended without an error."""
        return self.what.partition("UDF_EXECUTION_ERROR(")[2].partition("): ")[2]


class ContractViolation(EbbflowError):
    """User code responded in a way its role does not allow; the messages are redelivered."""

    def __init__(self, vertex: str, what: str, ids: Sequence[str] = (), fix: str = "") -> None:
        super().__init__(vertex, what, tuple(ids), fix)
        self.vertex = vertex
        self.what = what
        self.ids = tuple(ids)
        self.fix = fix

    def __str__(self) -> str:
        shown = ", ".join(self.ids[:5]) + (f" and {len(self.ids) - 5} more" * (len(self.ids) > 5))
        about = f" (ids: {shown})" if self.ids else ""
        return f"{self.vertex}: {self.what}{about}. {self.fix}".rstrip()


class SparkError(EbbflowError):
    """An error of Spark, or of a database behind it, about rows or a query; ``kind`` names it."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class SimulationError(EbbflowError):
    """A simulated pipeline that would never end because of a vertex; the text says what to do."""

    def __init__(self, vertex: str, what: str, next_step: str) -> None:
        super().__init__(vertex, what, next_step)
        self.vertex = vertex
        self.what = what
        self.next_step = next_step

    def __str__(self) -> str:
        return f"The vertex {self.vertex} {self.what}. {self.next_step}"


class MessageTooLarge(EbbflowError):
    """A message over the server's limit. Its input is dead-lettered: a retry cannot help."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"message of {self.size:,} bytes is over the limit of {self.limit:,} bytes; "
            "split it, store it elsewhere and send a reference, or raise max_payload of the server"
        )


class Fenced(EbbflowError):
    """Another task has claimed this partition, so this one must stop without settling."""

    def __init__(self, vertex: str, partition: int) -> None:
        super().__init__(vertex, partition)
        self.vertex = vertex
        self.partition = partition

    def __str__(self) -> str:
        return f"another task now owns partition {self.partition} of {self.vertex}"


class DataSourceError(EbbflowError):
    """A read or write of the Spark data source cannot continue; its text names the next step."""

    def __init__(self, what: str, next_step: str = "") -> None:
        super().__init__(what, next_step)
        self.what = what
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.what} {self.next_step}".rstrip()


class DataLoss(DataSourceError):
    """Messages to read are no longer in the stream."""


class RequestError(EbbflowError):
    """A client of a serving pipeline got no answer to the request ``id``."""

    def __init__(self, id: str, *facts: object) -> None:
        super().__init__(id, *facts)
        self.id = id


class RequestRefused(RequestError):
    """The server did not accept the request: ``status`` is HTTP's, or 0 without a connection."""

    def __init__(self, id: str, status: int, message: str) -> None:
        super().__init__(id, status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        status = f" with {self.status}" if self.status else ""
        return f"request {self.id} was refused{status}: {self.message}"


class RequestFailed(RequestError):
    """A message of the request became a dead letter in ``vertex``; a retry may fail again."""

    def __init__(self, id: str, vertex: str, reason: str, error: str) -> None:
        super().__init__(id, vertex, reason, error)
        self.vertex = vertex
        self.reason = reason
        self.error = error

    def __str__(self) -> str:
        why = ": ".join(part for part in (self.reason, self.error) if part)
        return f"request {self.id} failed in {self.vertex}: {why}"


class AnswerPending(RequestError):
    """No answer came in time. The server has the request and continues with it."""

    def __str__(self) -> str:
        return f"request {self.id} has no answer yet; fetch it later by this id"


class RequestInDoubt(RequestError):
    """The connection was lost before the request's outcome was known; ``problem`` says how."""

    def __init__(self, id: str, problem: str) -> None:
        super().__init__(id, problem)
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"it is not known whether request {self.id} was taken: {self.problem}; "
            "fetch it by this id, or ask again with the same id"
        )


class UnknownRequest(RequestError):
    """The server has no such request: it was never accepted, or its answer has expired."""

    def __str__(self) -> str:
        return f"the server knows no request {self.id}; it was never taken, or it has expired"


class PublishError(EbbflowError):
    """JetStream did not confirm a message. ``attempts`` and ``seconds`` say what was tried.

    For messages that were published together, ``acks`` has an entry for each message that was
    sent, in their order: its ack, or None.
    """

    problem = "not confirmed"
    acks: tuple[Ack | None, ...] = ()

    def __init__(self, subject: str, attempts: int, seconds: float, detail: str = "") -> None:
        super().__init__(subject, attempts, seconds, detail)
        self.subject = subject
        self.attempts = attempts
        self.seconds = seconds
        self.detail = detail

    def __str__(self) -> str:
        tries = f"{self.attempts} attempt{'s' * (self.attempts != 1)}"
        text = f"{self.subject}: {self.problem} after {tries} in {self.seconds:.2f} s"
        return f"{text}: {self.detail}" if self.detail else text


class NoStreamResponse(PublishError):
    """The attempts are used up and the last got no response: no stream has this subject."""

    problem = "no response from stream"


class PublishTimeout(PublishError):
    """The deadline passed before a reply."""

    problem = "no confirmation before the deadline"


class BufferFull(PublishError):
    """The stream is at its limit (server error 10077); the caller decides whether to wait."""

    problem = "buffer full"


class PermanentPublishError(PublishError):
    """The server refused the message in a way that another attempt cannot change."""

    problem = "refused by the server"

    def __init__(
        self, subject: str, attempts: int, seconds: float, detail: str = "", code: int = 0
    ) -> None:
        super().__init__(subject, attempts, seconds, detail)
        self.args = (subject, attempts, seconds, detail, code)
        self.code = code
