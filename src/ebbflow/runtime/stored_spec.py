"""The spec that a pipeline last ran with, kept in NATS for whoever looks at it later.

It is stored when a run begins, beside the positions, and without secrets. Commands and the page
draw the pipeline from it, complete names of vertices and know where messages may be sent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ebbflow.domain.errors import EbbflowError, SetupError, did_you_mean
from ebbflow.nats.client import SecuredClient
from ebbflow.spec.graph.shape import PipelineShape, ShapeVertex
from ebbflow.streams.names import Names
from ebbflow.streams.provision import explain_missing
from ebbflow.streams.record import Record

if TYPE_CHECKING:
    from ebbflow.spec.model import Spec


@dataclass(frozen=True, slots=True)
class StoredSpec:
    """A spec as data, secrets hidden, and the shape of its pipeline."""

    document: dict[str, Any]
    shape: PipelineShape

    def vertex(self, name: str) -> ShapeVertex:
        """Returns the vertex of that name; ``EbbflowError`` says which there are."""
        vertex = self.shape.vertex(name)
        if vertex is None:
            names = [each.name for each in self.shape.vertices]
            meant = did_you_mean(name, names, "there are")
            raise EbbflowError(f"{self.shape.pipeline} has no vertex {name!r}; {meant}")
        return vertex


async def store_spec(client: SecuredClient, names: Names, spec: Spec) -> None:
    """Stores what a run is about to run, in place of what was stored before."""
    from ebbflow.spec.echo import to_document
    from ebbflow.spec.outline import outline

    stored = {"document": to_document(spec), "shape": outline(spec).to_json()}
    payload = json.dumps(stored).encode()
    await Record(client, names.positions, names.spec_key).update(lambda _: payload)


async def read_spec(client: SecuredClient, names: Names) -> StoredSpec:
    """Returns the spec of the latest run; ``SetupError`` if no such pipeline has run here."""
    async with explain_missing(client, names.pipeline):
        stored = await Record(client, names.positions, names.spec_key).read()
    if stored is None:
        raise SetupError(
            f"Pipeline {names.pipeline} has not run with this version yet.",
            "Run it once, or name its file.",
        )
    facts = json.loads(stored)
    return StoredSpec(facts["document"], PipelineShape.from_json(facts["shape"]))
