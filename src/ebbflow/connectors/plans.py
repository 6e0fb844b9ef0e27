"""The plans of connectors for the engine; feeds and the generator have their own modules.

Plain data without pydantic: the driver creates them from a spec and sends them to workers. No text
shows their secrets. The log and blackhole sinks need nothing but their plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Never, assert_never

from ebbflow.domain.code import Code, SinkMode, Variables
from ebbflow.domain.secrets import Secret
from ebbflow.usercode.printing import Emit, Printed, cut

if TYPE_CHECKING:  # lint does without Arrow
    from ebbflow.domain.message import Datum
    from ebbflow.engine.verdict import Verdict

FILE_FORMATS = frozenset({"parquet", "orc", "json", "csv"})
"""The formats whose tables are folders of files that a writer may name."""

WHOLE_CHUNK = 8_192
"""The most rows of a chunk: a built-in sink writes a whole chunk in one call."""

_AT_ONCE = 64 * 1024


class Settings:
    """A section of a spec as plain data for workers: an attribute for each field."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> Never:
        raise AttributeError(f"settings do not change; {name} cannot be set")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no setting {name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.items()))

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


@dataclass(frozen=True, slots=True)
class Pulled:
    """A source that the vertex reads: code that creates an ``ebbflow.Source``.

    The code is called once for each partition, in its own process next to the vertex's task.
    ``env`` has the variables of its container.
    """

    code: Code
    env: Variables = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class UserSink:
    """A sink that is called with messages: code that returns a response for each.

    ``mode`` says what one call gets and returns. ``rows`` is the most that a call of a columnar
    sink gets, unless the spec says otherwise. ``env`` has the variables of its container.

    A sink responds UNAVAILABLE while its target is down, and the vertex waits. If
    ``strategy_decides`` and there is a retry strategy, that response counts as FAILURE: the
    strategy then says what to do, for example to use the fallback sink. UNAVAILABLE from a user's
    own code always holds.
    """

    code: Code
    mode: SinkMode = "batch"
    rows: int | None = None
    env: Variables = field(default=(), repr=False)
    strategy_decides: bool = True


@dataclass(frozen=True, slots=True)
class Format:
    """The name of a format, its options, and its secret options."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, Secret], ...] = ()

    def reveal_options(self) -> dict[str, str]:
        """Returns all options, as Spark takes them."""
        return dict(self.options) | {name: secret.reveal() for name, secret in self.secrets}

    def without_secrets(self, text: str) -> str:
        """Returns the text with every secret replaced by ``***``."""
        for _, secret in self.secrets:
            text = text.replace(secret.reveal(), "***")
        return text


@dataclass(frozen=True, slots=True)
class SparkSourceSettings:
    """A format to read, when to read it, and SQL that converts its rows to messages.

    ``stream=None`` streams if the format can. ``every`` is a trigger in seconds.
    """

    format: Format
    schema: str | None = None
    stream: bool | None = None
    every: float | None = None
    available_now: bool = False
    value: str | None = None
    keys: str | None = None
    event_time: str | None = None
    id: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SparkSinkSettings:
    """A format to write batches with, and their columns.

    ``schema`` has the fields of values as JSON; ``columns`` are names with SQL expressions.
    """

    format: Format
    mode: str = "append"
    schema: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogSink:
    """Prints every message as one line."""

    def write(self, verdict: Verdict, emit: Emit, role: str = "sink") -> None:
        """Passes the lines to ``emit``, many at once, which returns when they are in flight.

        A line that is too long is cut, with a note.
        """
        vertex = verdict.rules.vertex
        place = vertex if role == "sink" else f"{vertex}, {role.replace('_', ' ')}"
        lines: list[str] = []
        size = 0
        for datum in verdict.rows.data():
            lines.append(cut(log_line(place, datum)))
            size += len(lines[-1])
            if size > _AT_ONCE:
                emit(Printed("\n".join(lines), "message"))
                lines, size = [], 0
        if lines:
            emit(Printed("\n".join(lines), "message"))


@dataclass(frozen=True, slots=True)
class BlackholeSink:
    """Discards every message."""

    def write(self, verdict: Verdict) -> None:
        """Leaves the verdict unchanged: messages without an outcome are done."""


@dataclass(frozen=True, slots=True)
class ServeSink:
    """Stores every message as an answer to its request."""

    def write(self, verdict: Verdict) -> None:
        """Passes all values to the serving store, which decides about the messages."""
        verdict.decisions.serve_all(verdict.rows.column("value"))


@dataclass(frozen=True, slots=True)
class SparkSink:
    """Writes batches of messages with Spark."""

    settings: SparkSinkSettings

    def write(self, verdict: Verdict) -> None:
        """Leaves the verdict unchanged: messages that Spark has written are done."""


SinkPlan = UserSink | LogSink | BlackholeSink | ServeSink | SparkSink


def runs_inline(sink: SinkPlan) -> bool:
    """Returns whether the task of the preceding vertex may call the sink."""
    match sink:
        case UserSink():  # only Python code that is called in the worker, not a connector
            return not sink.strategy_decides and sink.rows is None
        case SparkSink():
            return False
        case LogSink() | BlackholeSink() | ServeSink():
            return True
        case never:
            assert_never(never)


def log_line(place: str, datum: Datum) -> str:
    """Returns a message as one line; bytes that are not UTF-8 are escaped."""
    payload = datum.value.decode("utf-8", "backslashreplace").replace("\n", "\\n")
    facts = [f"({place})", f"id={datum.id}", f"payload={payload}"]
    if datum.keys:
        facts.append(f"keys={','.join(datum.keys)}")
    if datum.event_time is not None:
        facts.append(f"event_time={datum.event_time.isoformat(timespec='milliseconds')}")
    if datum.headers:
        facts.append(f"headers={datum.headers}")
    return " ".join(facts)
