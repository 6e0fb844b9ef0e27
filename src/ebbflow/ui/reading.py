"""The last state that a run has published."""

from __future__ import annotations

from ebbflow.buffers.names import Names
from ebbflow.nats.link import Link
from ebbflow.nats.stored import read_last
from ebbflow.status.model import PipelineStatus


def read_status(link: Link, names: Names) -> PipelineStatus:
    """Returns the last state that a run of the pipeline has published; blocks."""
    subject = f"ebb.{names.pipeline}.status.now"
    messages = link.run(read_last(link.client, f"ebb_{names.pipeline}_status", subject))
    if not messages:
        return PipelineStatus(names.pipeline, phase="ended")
    return PipelineStatus.from_bytes(messages[-1].payload)
