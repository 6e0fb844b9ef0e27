"""The serve sink in a spec."""

from __future__ import annotations

from ebbflow.connectors.base import SinkSection, sink
from ebbflow.connectors.plans import ServeSink


@sink("serve", answers=True)
class ServeSinkSpec(SinkSection):
    """Stores the value of every message as an answer to its request. Has no settings."""

    def plan(self) -> ServeSink:
        """Returns the plan of a serve sink."""
        return ServeSink()
