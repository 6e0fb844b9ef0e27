"""The plans that connectors give to the engine, beside feeds and the generator's.

Plain data without pydantic: the driver makes them from a spec and ships them to workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
