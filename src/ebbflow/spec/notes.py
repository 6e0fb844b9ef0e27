"""Notes on a file without problems: what it says that changes nothing here, each thing once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ebbflow.connectors.schema.fields import WITHOUT_EFFECT, Section
from ebbflow.spec.companions import BufferServiceDocument
from ebbflow.spec.document import Document
from ebbflow.spec.kinds import Readable, Runnable


def notes_on(
    specs: Iterable[Runnable], companions: Iterable[Readable], others: Sequence[Document]
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


def fields_without_effect(spec: Runnable) -> list[str]:
    """Returns the fields that are set without effect, each once, however many vertices set it.

    Labels and the like are not among them: they mean nothing to a run in Numaflow either.
    """
    return list(dict.fromkeys(_idle_in(spec.spec, "spec")))


def _idle_in(section: Section, path: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value, where = getattr(section, name), f"{path}.{field.alias}"
        if (field.description or "").startswith(WITHOUT_EFFECT):
            yield from [where] if value not in (None, False) else []
        elif isinstance(value, Section):
            yield from _idle_in(value, where)
        elif isinstance(value, tuple):
            sections = [item for item in value if isinstance(item, Section)]
            yield from (idle for item in sections for idle in _idle_in(item, f"{where}[]"))
