"""The prerequisites of a pipeline: its streams, and the permissions of its login.

``ensure`` creates a stream or changes an existing one; when it cannot, the error says what to do
instead. ``explain_missing`` raises for a pipeline that has not run, and names those that have.

``derive_permissions`` lists what a login needs, and no more. Every stream and subject is named in
full: a wildcard covers only names that are generated while the pipeline runs, and never those of
another pipeline.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from nats.aio.client import Client

from ebbflow.domain.errors import SetupError
from ebbflow.nats import api
from ebbflow.nats.api import ApiError
from ebbflow.streams.catalogue import KINDS, KeptStream, PipelineStreams, Purpose, StreamKind
from ebbflow.streams.names import PREFIX, Names, VertexStreams, list_pipelines

_IN_USE_DIFFERENTLY = 10058
_NO_PEERS = 10005
_NO_CLUSTER = 10074
_NO_ROOM = 10047
_PAUSE = 0.1
_JOINING = 10.0
# The last call is only for the pipeline's own streams: one that it may share is not deleted.
_MAKES = ("STREAM.CREATE.{}", "STREAM.UPDATE.{}", "STREAM.INFO.{}", "STREAM.DELETE.{}")

Groups = dict[str, list[str]]
"""Subjects, grouped by their purpose."""


async def ensure(client: Client, config: dict[str, Any]) -> None:
    """Creates the stream, or updates an existing one to this configuration."""
    name = config["name"]
    try:
        await _place(client, f"STREAM.CREATE.{name}", config)
    except ApiError as error:
        if error.code != _IN_USE_DIFFERENTLY:
            raise _explain(config, error) from error
        try:
            await _place(client, f"STREAM.UPDATE.{name}", config)
        except ApiError as refusal:
            if refusal.code in (_NO_CLUSTER, _NO_PEERS):
                raise _explain(config, refusal) from refusal
            raise SetupError(
                f"Stream {name} exists with another configuration: {refusal}.",
                "Run with --fresh to start the pipeline over, or rename the pipeline.",
            ) from refusal


async def _place(client: Client, call: str, config: dict[str, Any]) -> None:
    """Makes a call that places a stream; waits a while for new servers to join the cluster."""
    deadline = time.monotonic() + _JOINING
    while True:
        try:
            await api.call(client, call, config)
            return
        except ApiError as error:
            if error.code != _NO_PEERS or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_PAUSE)


def _explain(config: dict[str, Any], error: ApiError) -> SetupError:
    name, replicas = config["name"], config.get("num_replicas", 1)
    lower = "or set interStepBuffer.replicas to 1"
    if error.code == _NO_CLUSTER:
        return SetupError(
            f"Stream {name} needs {replicas} servers, but NATS is a single one.",
            f"Use a cluster of at least {replicas}, {lower}.",
        )
    if error.code == _NO_PEERS:
        return SetupError(
            f"The NATS cluster has no {replicas} servers that can keep stream {name}: {error}.",
            f"Start those that are missing, see whether they have room, {lower}.",
        )
    if error.code == _NO_ROOM:
        return SetupError(
            f"NATS has no room to set aside for stream {name}: {error}.",
            "Make room on its disk, or raise max_file_store in its configuration.",
        )
    return SetupError(f"NATS refused stream {name}: {error}.")


@asynccontextmanager
async def explain_missing(client: Client, pipeline: str) -> AsyncIterator[None]:
    """Raises ``SetupError`` if a stream does not exist because the pipeline has not run."""
    try:
        yield
    except ApiError as error:
        if error.code != api.NOT_FOUND:
            raise
        raise await find_unknown(client, pipeline) from None


async def find_unknown(client: Client, pipeline: str) -> SetupError:
    """Returns the error about a pipeline that has not run here; it names those that have."""
    return explain_unknown(pipeline, await api.list_streams(client, PREFIX))


def explain_unknown(pipeline: str, existing: Iterable[str]) -> SetupError:
    """Returns the error about a pipeline that has none of the streams that exist."""
    known = list_pipelines(existing)
    if pipeline in known:
        return SetupError(
            f"Pipeline {pipeline!r} has not started here completely: it lacks some of its streams.",
            "Run it again, and correct what that run reports.",
        )
    place = "Name another place with --state DIR or --nats URL."
    step = f"Known here: {', '.join(known)}. {place}" if known else place
    return SetupError(f"No pipeline {pipeline!r} has run here.", step)


@dataclass(frozen=True, slots=True)
class Permissions:
    """The subjects that a login may publish and subscribe to, grouped by purpose."""

    publish: Groups
    subscribe: Groups

    def to_config(self) -> str:
        """Returns them in the form of a user's block in the server's configuration."""
        lists = {"publish": self.publish, "subscribe": self.subscribe}
        inner = (line for name, groups in lists.items() for line in _list_allowed(name, groups))
        return "\n".join(["permissions: {", *inner, "}"])


def _list_allowed(name: str, groups: Groups) -> Iterator[str]:
    yield f"  {name}: {{"
    yield "    allow: ["
    for purpose, subjects in groups.items():
        yield f"      # {purpose}"
        # JSON strings are valid in the server's configuration language.
        yield from (f"      {json.dumps(subject)}" for subject in subjects)
    yield "    ]"
    yield "  }"


def derive_permissions(
    names: Names,
    vertices: Sequence[VertexStreams],
    bucket: str | None = None,
    audit: bool = False,
) -> Permissions:
    """Returns the permissions to run a pipeline, to start it over and to manage its dead letters.

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
        "replies to its requests": [f"{names.inbox}.>"],
        "control messages, and reports of tasks": [
            names.control_subject,
            names.event_subject(),
            names.log_subject(),
        ],
        "messages of taps": [names.tap_subject()],
        "lock the pipeline against a second run": [names.run_subject],
        "the status of the pipeline": [names.status_subject("now")],
    }
    in_order = (purpose for purpose in Purpose if publish.get(purpose))
    return Permissions({purpose.value: publish[purpose] for purpose in in_order}, subscribe)


def _list_granted(
    kind: StreamKind, pipeline: PipelineStreams
) -> Iterator[tuple[Purpose, Sequence[str]]]:
    """Yields the subjects that a pipeline publishes to for a kind of stream."""
    streams = [*kind.kept(pipeline)]
    if not streams:
        return
    making = _MAKES if kind.is_own(pipeline) else _MAKES[:-1]
    yield kind.made_for, [*_list_calls(streams, making)]
    for grant in kind.grants:
        about = [s for s in streams if s.vertex is None or grant.where(s.vertex)]
        yield grant.purpose, [*_list_calls(about, grant.calls), *grant.subjects(pipeline)]


def _list_calls(streams: Iterable[KeptStream], calls: Iterable[str]) -> Iterator[str]:
    for stream in streams:
        yield from (f"$JS.API.{call.format(stream.config['name'])}" for call in calls)
