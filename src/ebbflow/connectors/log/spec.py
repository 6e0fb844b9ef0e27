"""The log sink in a spec."""

from __future__ import annotations

from ebbflow.connectors.base import SinkSection, sink
from ebbflow.connectors.plans import LogSink


@sink("log")
class LogSpec(SinkSection):
    """Writes every message to the log. Has no settings."""

    def plan(self) -> LogSink:
        """Returns the plan of a log sink."""
        return LogSink()
