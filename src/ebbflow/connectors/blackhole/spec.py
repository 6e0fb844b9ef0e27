"""The blackhole sink in a spec."""

from __future__ import annotations

from ebbflow.connectors.plans import BlackholeSink
from ebbflow.connectors.section import SinkSection


class BlackholeSpec(SinkSection):
    """Forgets every message. Has no settings."""

    def plan(self) -> BlackholeSink:
        """Returns the plan of a blackhole sink."""
        return BlackholeSink()
