"""The blackhole sink in a spec."""

from __future__ import annotations

from ebbflow.connectors.base import SinkSection, sink
from ebbflow.connectors.plans import BlackholeSink


@sink("blackhole")
class BlackholeSpec(SinkSection):
    """Forgets every message. Has no settings."""

    def plan(self) -> BlackholeSink:
        """Returns the plan of a blackhole sink."""
        return BlackholeSink()
