"""The plans that connectors give to the engine, next to feeds and the generator's.

Plain data without pydantic: the driver makes them from a spec and ships them to workers. Secrets
show in no text. The log and blackhole sinks need no more than their plan.
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
"""As many rows as a chunk may have: a built-in sink writes all of it in one call."""

_AT_ONCE = 64 * 1024


class Settings:
    """What a section of a spec says, as plain data for workers: an attribute for each field."""

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
    """A source that is asked for messages: code that makes an ``ebbflow.Source``.

    It is called once for each partition, in its own process next to the vertex's task. ``env`` are
    the variables of its container.
    """

    code: Code
    env: Variables = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class UserSink:
    """A sink that is called with messages: code that answers for each of them.

    ``mode`` says what one call gets and how it answers. ``rows`` is the most that a call of a
    columnar sink gets, unless the spec says something else. ``env`` are the variables of its
    container.

    A sink answers UNAVAILABLE while its target is down, and the vertex waits. With a retry strategy
    that answer counts as FAILURE where ``strategy_decides``: the strategy then says what to do, for
    example to use the fallback sink. The word of a user's own code holds as it is.
    """

    code: Code
    mode: SinkMode = "batch"
    rows: int | None = None
    env: Variables = field(default=(), repr=False)
    strategy_decides: bool = True


@dataclass(frozen=True, slots=True)
class Format:
    """The name of a format, its options, and those that are secret."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, Secret], ...] = ()

    def reveal_options(self) -> dict[str, str]:
        """Returns all options, as Spark takes them."""
        return dict(self.options) | {name: secret.reveal() for name, secret in self.secrets}

    def without_secrets(self, text: str) -> str:
        """Returns the text with every secret in it covered."""
        for _, secret in self.secrets:
            text = text.replace(secret.reveal(), "***")
        return text


@dataclass(frozen=True, slots=True)
class SparkSourceSettings:
    """A format to read, when to read it, and SQL that makes messages of its rows.

    ``stream`` of ``None`` is whatever the format can. ``every`` is a trigger in seconds.
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
    """A format to write batches with, and the columns that they have.

    ``schema`` is what values are as JSON; ``columns`` are names with expressions in SQL.
    """

    format: Format
    mode: str = "append"
    schema: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogSink:
    """Print every message as one line."""

    def write(self, verdict: Verdict, emit: Emit, role: str = "sink") -> None:
        """Hands the lines to ``emit``, many at once; it returns when they are in flight.

        A line that is too long is cut, and says so.
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
    """Forget every message."""

    def write(self, verdict: Verdict) -> None:
        """Leaves the verdict as it is: what has no outcome itself is done."""


@dataclass(frozen=True, slots=True)
class ServeSink:
    """Store every message as an answer to its request."""

    def write(self, verdict: Verdict) -> None:
        """Leaves all values to the serving store, which decides about the messages."""
        verdict.decisions.serve_all(verdict.rows.column("value"))


@dataclass(frozen=True, slots=True)
class SparkSink:
    """Write batches of messages with Spark."""

    settings: SparkSinkSettings

    def write(self, verdict: Verdict) -> None:
        """Leaves the verdict as it is: what Spark has written is done."""


SinkPlan = UserSink | LogSink | BlackholeSink | ServeSink | SparkSink


def runs_inline(sink: SinkPlan) -> bool:
    """Returns whether the task of the vertex before it may call the sink."""
    match sink:
        case UserSink():  # Python code that is called in the worker, not a connector
            return not sink.strategy_decides and sink.rows is None
        case SparkSink():
            return False
        case LogSink() | BlackholeSink() | ServeSink():
            return True
        case never:
            assert_never(never)


def log_line(place: str, datum: Datum) -> str:
    """One message on one line; bytes that are not text are shown escaped."""
    payload = datum.value.decode("utf-8", "backslashreplace").replace("\n", "\\n")
    facts = [f"({place})", f"id={datum.id}", f"payload={payload}"]
    if datum.keys:
        facts.append(f"keys={','.join(datum.keys)}")
    if datum.event_time is not None:
        facts.append(f"event_time={datum.event_time.isoformat(timespec='milliseconds')}")
    if datum.headers:
        facts.append(f"headers={datum.headers}")
    return " ".join(facts)
