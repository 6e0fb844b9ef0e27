"""A pipeline that a test shows in the web UI: its streams are real, its states are the test's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ebbflow.nats.link import Link
from ebbflow.status.model import PipelineStatus, VertexStatus
from ebbflow.status.stored import StatusPublisher
from ebbflow.streams import catalogue
from ebbflow.streams.names import Names
from tests.deadletters.written import Written

VERTICES = (VertexStatus("in", kind="source"), VertexStatus("enrich"))


class Shown(Written):
    """A pipeline with dead letters and a state."""

    def __init__(self, link: Link, names: Names) -> None:
        super().__init__(link, names.pipeline)
        self.status = PipelineStatus(names.pipeline, vertices=VERTICES, ready=True)
        self._ensure(catalogue.status_config(self.names))
        self._ensure(catalogue.positions_config(self.names))

    def publish_status(self, **changes: Any) -> PipelineStatus:
        """Publish a state, as a run does."""
        self.status = replace(self.status, at=datetime.now(UTC), **changes)
        self.link.run(StatusPublisher(self.link.client, self.names).publish_last(self.status))
        return self.status
