"""A real NATS server for the folder, and pipelines on it whose dead letters are written by hand."""

from __future__ import annotations

from tests.cli.standing import standing
from tests.deadletters.written import link, pipeline, state

__all__ = ["link", "pipeline", "standing", "state"]
