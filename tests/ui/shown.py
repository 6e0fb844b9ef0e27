"""A pipeline that a test shows on the page: its streams are real, its states come from the test."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ebbflow.buffers.names import Names
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.publish import publish
from ebbflow.status.model import PipelineStatus, VertexStatus
from tests.deadletters.written import Written

VERTICES = (VertexStatus("in", kind="source"), VertexStatus("enrich"))


class Shown(Written):
    """A pipeline with dead letters and a state."""

    def __init__(self, link: Link, names: Names) -> None:
        super().__init__(link, names.pipeline)
        self.status = PipelineStatus(names.pipeline, vertices=VERTICES, ready=True)
        self.stream = f"ebb_{names.pipeline}_status"
        self.subject = f"ebb.{names.pipeline}.status.now"
        config = {
            "name": self.stream,
            "subjects": [f"ebb.{names.pipeline}.status.>"],
            "storage": "file",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
        }
        link.run(api.call(link.client, f"STREAM.CREATE.{self.stream}", config))

    def tell(self, **changes: Any) -> PipelineStatus:
        """Publish a state, as a run does."""
        self.status = replace(self.status, at=datetime.now(UTC), **changes)
        payload, headers = self.status.to_bytes(), {"Nats-Rollup": "sub"}
        self.link.run(publish(self.link.client, self.subject, payload, headers))
        return self.status
