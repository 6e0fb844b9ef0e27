"""The plans that connectors give to the engine, beside feeds and the generator's.

Plain data without pydantic: the driver makes them from a spec and ships them to workers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebbflow.connectors.spark.settings import SparkSinkSettings
from ebbflow.schema.literals import Code


@dataclass(frozen=True, slots=True)
class Pulled:
    """A source that is asked for messages: code that makes an ``ebbflow.Source``.

    It is called once for each partition, in a process beside the vertex's task.
    """

    code: Code


@dataclass(frozen=True, slots=True)
class UserSink:
    """A sink that is called with messages: code that answers for each of them."""

    code: Code


@dataclass(frozen=True, slots=True)
class LogSink:
    """Print every message."""


@dataclass(frozen=True, slots=True)
class BlackholeSink:
    """Forget every message."""


@dataclass(frozen=True, slots=True)
class SparkSink:
    """Write batches of messages with Spark."""

    settings: SparkSinkSettings


SinkPlan = UserSink | LogSink | BlackholeSink | SparkSink
