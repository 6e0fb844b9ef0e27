"""The plans that connectors give to the engine, beside feeds and the generator's.

Plain data without pydantic: the driver makes them from a spec and ships them to workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Never

from ebbflow.connectors.spark.settings import SparkSinkSettings
from ebbflow.domain.code import Code, SinkMode
from ebbflow.usercode.variables import Variables


@dataclass(frozen=True, slots=True)
class Pulled:
    """A source that is asked for messages: code that makes an ``ebbflow.Source``.

    It is called once for each partition, in a process beside the vertex's task. ``env`` are the
    variables of its container.
    """

    code: Code
    env: Variables = field(default=(), repr=False)


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


WHOLE_CHUNK = 8_192
"""As many rows as a chunk may have: a built-in sink writes all of it in one call."""


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
class LogSink:
    """Print every message."""


@dataclass(frozen=True, slots=True)
class BlackholeSink:
    """Forget every message."""


@dataclass(frozen=True, slots=True)
class ServeSink:
    """Store every message as an answer to its request."""


@dataclass(frozen=True, slots=True)
class SparkSink:
    """Write batches of messages with Spark."""

    settings: SparkSinkSettings


SinkPlan = UserSink | LogSink | BlackholeSink | ServeSink | SparkSink
