"""The permissions that the login of a pipeline needs in NATS, and no more.

Every stream and subject is named in full: a wildcard stands only for what is made up while the
pipeline runs, and never reaches into another pipeline. Pure: from names to subjects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from ebbflow.streams.names import Names, VertexStreams

_FOLLOW = ("CONSUMER.CREATE.{}.*", "CONSUMER.MSG.NEXT.{}.*", "CONSUMER.DELETE.{}.*")

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
    returned = [_list_returned(names, vertex) for vertex in vertices if vertex.returns]
    seen = [names.seen_subject(vertex.vertex) for vertex in vertices if vertex.remembers]
    followed = [s for vertex in vertices if not vertex.batched for s in vertex.for_messages(names)]
    batched = [s for vertex in vertices if vertex.batched for s in vertex.for_messages(names)]
    serves = any(vertex.serves for vertex in vertices)
    positions = f"KV_{names.positions}"
    kept = {names.ledger: bool(returned), names.seen: bool(seen), names.trail: serves}
    kept[names.audit] = audit
    beside = [stream for stream, is_kept in kept.items() if is_kept]
    kept_always = [names.dead_letters, names.logs, names.status]
    own = [positions, *kept_always, *beside, *followed, *batched]
    publish: Groups = {
        "see which streams there are; shows names only": ["$JS.API.STREAM.NAMES"],
        "make its streams, look at them, delete them for --fresh": _list_calls(
            own, "STREAM.CREATE.{}", "STREAM.UPDATE.{}", "STREAM.INFO.{}", "STREAM.DELETE.{}"
        ),
        "read its buffers and redeliveries, and forget what is done": [
            *_list_calls([*followed, *batched], *_FOLLOW),
            *_list_reads(batched),
            *_list_calls([*followed, *batched], "STREAM.PURGE.{}"),
        ],
        "read its positions": _list_reads([positions]),
        "tell its state, and read it": [
            names.status_subject(),
            *_list_reads([names.status]),
            *_list_calls([names.status], *_FOLLOW),
        ],
        "read, replay and purge its dead letters": [
            *_list_reads([names.dead_letters]),
            *_list_calls([names.dead_letters], *_FOLLOW),
            *_list_calls([names.dead_letters], "STREAM.MSG.DELETE.{}", "STREAM.PURGE.{}"),
            *_list_calls(_list_marked(names, vertices), "STREAM.MSG.GET.{}"),
        ],
        "write messages, redeliveries, dead letters and positions": [
            subject for vertex in vertices for subject in _list_written(names, vertex)
        ],
        "have tasks stop, and tell what they do": [names.control_subject, names.event_subject()],
        "show what passes to whoever taps": [names.tap_subject()],
        "pause and resume, and keep the spec": [
            f"$KV.{names.positions}.{names.pauses_key}",
            f"$KV.{names.positions}.{names.spec_key}",
        ],
        "tell what user code prints, and read it": [
            *(names.log_subject(vertex.vertex) for vertex in vertices),
            *_list_reads([names.logs]),
            *_list_calls([names.logs], *_FOLLOW),
        ],
        "be the one run of this pipeline": [names.run_subject, f"{names.inbox}.>"],
    }
    if returned:
        publish["write down what went back to a source"] = [
            *_list_reads([names.ledger]),
            *_list_calls([names.ledger], "STREAM.PURGE.{}"),
            *chain.from_iterable(returned),
        ]
    if seen:
        publish["write down the ids that sources were given"] = [*_list_reads([names.seen]), *seen]
    if serves:
        publish["write down what became of every message, and follow it"] = [
            *_list_calls([names.trail], *_FOLLOW),
            *(names.trail_subject(vertex.vertex) for vertex in vertices),
        ]
    if audit:
        publish["write down what became of every message, until it is in the audit table"] = [
            *_list_calls([names.audit], "STREAM.PURGE.{}", *_FOLLOW),
            *_list_reads([names.audit]),
            *(
                names.audit_subject(vertex.vertex, partition)
                for vertex in vertices
                for partition in range(vertex.partitions)
            ),
            f"$KV.{names.positions}.{names.audit_key}",
        ]
    if bucket is not None:
        publish["write and read answers"] = _list_for_answers(names, bucket)
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
    return Permissions(publish, subscribe)


def _list_calls(streams: Iterable[str], *calls: str) -> list[str]:
    return [f"$JS.API.{call.format(stream)}" for stream in streams for call in calls]


def _list_reads(streams: Iterable[str]) -> list[str]:
    return _list_calls(streams, "DIRECT.GET.{}", "STREAM.MSG.GET.{}")


def _list_for_answers(names: Names, bucket: str) -> list[str]:
    stream = f"KV_{bucket}"
    calls = _list_calls([stream], "STREAM.CREATE.{}", "STREAM.UPDATE.{}", "STREAM.INFO.{}")
    # Its own bucket goes with --fresh; one that it may share stays.
    fresh = _list_calls([stream], "STREAM.DELETE.{}") if bucket == names.answers else []
    reads = [*_list_reads([stream]), *_list_calls([stream], *_FOLLOW)]
    return [*calls, *fresh, *reads, f"$KV.{bucket}.>"]


def _list_returned(names: Names, vertex: VertexStreams) -> list[str]:
    return [names.ledger_subject(vertex.vertex, one) for one in range(vertex.partitions)]


def _list_marked(names: Names, vertices: Iterable[VertexStreams]) -> list[str]:
    """Returns the streams where a replay marks what it has sent, but those that are read anyway."""
    return [
        names.redelivery(vertex.vertex, partition)
        for vertex in vertices
        if not vertex.batched
        for partition in range(vertex.partitions)
    ]


def _list_written(names: Names, vertex: VertexStreams) -> Iterator[str]:
    name = vertex.vertex
    for partition in range(vertex.partitions):
        if vertex.has_buffer:
            yield names.buffer_subject(name, partition)
        yield names.due_subject(name, partition)
        yield names.later_subject(name, partition, "*")
        yield names.replayed_subject(name, partition)
        yield f"$KV.{names.positions}.{names.position_key(name, partition)}"
    yield names.dead_letter_subject(name)
