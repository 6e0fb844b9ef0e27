"""The permissions that the login of a pipeline needs in NATS, and no more.

Every stream and subject is named in full: a wildcard stands only for what is made up while the
pipeline runs, and never reaches into another pipeline. Pure: from the catalogue to subjects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ebbflow.streams.catalogue import KINDS, KeptStream, PipelineStreams, Purpose, StreamKind
from ebbflow.streams.names import Names, VertexStreams

# The last one is for streams that are the pipeline's own: one that it may share stays.
_MAKES = ("STREAM.CREATE.{}", "STREAM.UPDATE.{}", "STREAM.INFO.{}", "STREAM.DELETE.{}")

Groups = dict[str, list[str]]
"""Subjects under what they are for."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """The subjects that a login may publish and subscribe to, grouped by what they are for."""

    publish: Groups
    subscribe: Groups

    def to_config(self) -> str:
        """Returns them as a server's configuration has them in the block of a user."""
        lists = {"publish": self.publish, "subscribe": self.subscribe}
        inner = (line for name, groups in lists.items() for line in _list_allowed(name, groups))
        return "\n".join(["permissions: {", *inner, "}"])


def _list_allowed(name: str, groups: Groups) -> Iterator[str]:
    yield f"  {name}: {{"
    yield "    allow: ["
    for purpose, subjects in groups.items():
        yield f"      # {purpose}"
        # A JSON string is one of the server's configuration language as well.
        yield from (f"      {json.dumps(subject)}" for subject in subjects)
    yield "    ]"
    yield "  }"


def derive_permissions(
    names: Names,
    vertices: Sequence[VertexStreams],
    bucket: str | None = None,
    audit: bool = False,
) -> Permissions:
    """The permissions to run a pipeline, to start it over, and for its dead letters.

    ``bucket`` is where its answers go; ``audit`` if it keeps an audit table.
    """
    pipeline = PipelineStreams(names, vertices, bucket, audit_table="" if audit else None)
    publish: dict[Purpose, list[str]] = {
        Purpose.SEE: ["$JS.API.STREAM.NAMES"],
        Purpose.CONTROL: [names.control_subject, names.event_subject()],
        Purpose.TAP: [names.tap_subject()],
        Purpose.RUN: [names.run_subject, f"{names.inbox}.>"],
    }
    for kind in KINDS:
        for purpose, subjects in _list_granted(kind, pipeline):
            publish.setdefault(purpose, []).extend(subjects)
    subscribe = {
        "answers to its requests": [f"{names.inbox}.>"],
        "the word to stop, and what tasks tell": [
            names.control_subject,
            names.event_subject(),
            names.log_subject(),
        ],
        "see what passes": [names.tap_subject()],
        "be the one run of this pipeline": [names.run_subject],
        "the state of the pipeline": [names.status_subject("now")],
    }
    in_order = (purpose for purpose in Purpose if publish.get(purpose))
    return Permissions({purpose.value: publish[purpose] for purpose in in_order}, subscribe)


def _list_granted(
    kind: StreamKind, pipeline: PipelineStreams
) -> Iterator[tuple[Purpose, Sequence[str]]]:
    """Yields the subjects that a pipeline publishes to because of a kind of stream."""
    streams = [*kind.kept(pipeline)]
    if not streams:
        return
    making = _MAKES if kind.is_own(pipeline) else _MAKES[:-1]
    yield Purpose.MAKE, [*_list_calls(streams, making)]
    for grant in kind.grants:
        about = [s for s in streams if s.vertex is None or grant.where(s.vertex)]
        yield grant.purpose, [*_list_calls(about, grant.calls), *grant.subjects(pipeline)]


def _list_calls(streams: Iterable[KeptStream], calls: Iterable[str]) -> Iterator[str]:
    for stream in streams:
        yield from (f"$JS.API.{call.format(stream.config['name'])}" for call in calls)
