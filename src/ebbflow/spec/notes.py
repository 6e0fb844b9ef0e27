"""Notes on a file without problems: what it says that changes nothing here, each thing once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ebbflow.spec.companions import BufferServiceDocument
from ebbflow.spec.document import Document
from ebbflow.spec.kinds import Readable
from ebbflow.spec.kubernetes import MONOVERTEX_NO_EFFECT, NO_EFFECT
from ebbflow.spec.model import PipelineSpec, Spec
from ebbflow.spec.rules.support import find_fields

_STEP = (
    "limits.readTimeout",
    "source.http.service",
    "source.kafka.kafkaVersion",
)
_UNTOLD = ("", "metadata")
"""Labels and the like mean nothing to a run in Numaflow either."""


def notes_on(
    specs: Iterable[Spec], companions: Iterable[Readable], others: Sequence[Document]
) -> tuple[str, ...]:
    """Returns a line for what has no effect and a line for what is not read at all."""
    idle = [field for spec in specs for field in fields_without_effect(spec)]
    idle += [
        f"{companion.kind} {companion.name}"
        for companion in companions
        if isinstance(companion, BufferServiceDocument)
    ]
    unread = [f"{other.data['kind']} in line {other.values[()].line}" for other in others]
    notes = (("without effect here", dict.fromkeys(idle)), ("not read", dict.fromkeys(unread)))
    return tuple(f"{what}: {', '.join(names)}" for what, names in notes if names)


def _patterns_of(spec: Spec) -> Iterator[str]:
    """Returns where such fields can be: ``spec.vertices[].scale``."""
    pipeline = isinstance(spec, PipelineSpec)
    for place, names in (NO_EFFECT if pipeline else MONOVERTEX_NO_EFFECT).items():
        if place not in _UNTOLD:
            yield from (f"{place}.{name}" for name in names)
    yield from (f"{'spec.vertices[]' if pipeline else 'spec'}.{field}" for field in _STEP)
    if pipeline:
        yield "spec.limits.readTimeout"


def fields_without_effect(spec: Spec) -> list[str]:
    """Returns the fields that are set without effect, each once, however many vertices set it."""
    data = spec.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
    return [pattern for pattern in _patterns_of(spec) if next(find_fields(data, pattern), None)]
