"""Numaflow's own documents and resource fields, checked against lint and the model.

They are not part of this repository: the variable NUMAFLOW_EXAMPLES names a checkout of Numaflow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from ebbflow.spec.kinds import BufferServiceDocument, ServingPipelineSpec
from ebbflow.spec.lint import lint
from ebbflow.spec.model import MonoVertexSpec, PipelineSpec

CHECKOUT = os.environ.get("NUMAFLOW_EXAMPLES")
FOLDERS = ("examples", "test")
KINDS = ("Pipeline", "MonoVertex", "ServingPipeline", "InterStepBufferService")
NOT_HERE = {"EB901", "EB902"}
"""Unsupported features, and images without a binding."""

RESOURCES: dict[str, type[BaseModel]] = {
    "pipelines": PipelineSpec,
    "monovertices": MonoVertexSpec,
    "servingpipelines": ServingPipelineSpec,
    "interstepbufferservices": BufferServiceDocument,
}

pytestmark = pytest.mark.skipif(
    CHECKOUT is None, reason="NUMAFLOW_EXAMPLES names no checkout of Numaflow"
)


def documents() -> Iterator[Path]:
    """All files that contain a Numaflow resource."""
    for folder in FOLDERS:
        for file in sorted((Path(CHECKOUT or "") / folder).rglob("*.yaml")):
            read = yaml.safe_load_all(file.read_text())
            if any(isinstance(each, dict) and each.get("kind") in KINDS for each in read):
                yield file


def test_a_numaflow_document_is_rejected_only_for_unsupported_features():
    problems = {file: lint(file) for file in documents()}
    wrong = [str(p) for found in problems.values() for p in found if p.code not in NOT_HERE]
    assert wrong == []
    assert sum(not found for found in problems.values()) > 40


def unknown_fields(schema: Mapping[str, Any], model: type[BaseModel], path: str) -> Iterator[str]:
    """The fields of a schema that the model lacks, searched recursively."""
    for name, part in schema.get("properties", {}).items():
        where = f"{path}.{name}"
        named = (f for key, f in model.model_fields.items() if name in (key, f.alias))
        field = next(named, None)
        if field is None:
            yield where
        elif (inside := section_in(field.annotation)) is not None:
            yield from unknown_fields(part.get("items", part), inside, where)


def section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(section_in, get_args(annotation))), None)


@pytest.mark.parametrize("name", RESOURCES)
def test_every_numaflow_field_is_known(name):
    file = f"config/base/crds/full/numaflow.numaproj.io_{name}.yaml"
    definition = yaml.safe_load((Path(CHECKOUT or "") / file).read_text())
    (version,) = definition["spec"]["versions"]
    unknown = unknown_fields(version["schema"]["openAPIV3Schema"], RESOURCES[name], "")
    # Kafka's section rejects these two by name, before fields are checked.
    assert [field for field in unknown if field.split(".")[-1] not in ("gssapi", "oauth")] == []
