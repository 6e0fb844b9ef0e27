"""Makes streams as their configuration says, and says which pipelines have run where there is none.

``ensure`` creates a stream or changes one that exists; what cannot be done is an error that says
what to do instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.client import Client

from ebbflow.domain.errors import SetupError
from ebbflow.nats import api
from ebbflow.nats.api import ApiError
from ebbflow.streams.names import PREFIX, list_pipelines

_IN_USE_DIFFERENTLY = 10058
_NO_PEERS = 10005
_NO_CLUSTER = 10074
_NO_ROOM = 10047
_PAUSE = 0.1
_JOINING = 10.0


async def ensure(client: Client, config: dict[str, Any]) -> None:
    """Creates the stream, or brings an existing one to this configuration."""
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
    """Makes a call that needs servers to put a stream on; new ones are known a bit later."""
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
            f"Stream {name} is to be kept by {replicas} servers, but NATS is a single one.",
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
    """Raises ``SetupError`` where JetStream has no such stream, as no such pipeline has run."""
    try:
        yield
    except ApiError as error:
        if error.code != api.NOT_FOUND:
            raise
        raise await find_unknown(client, pipeline) from None


async def find_unknown(client: Client, pipeline: str) -> SetupError:
    """Returns the error about a pipeline that has not run here, with those that have."""
    return explain_unknown(pipeline, await api.list_streams(client, PREFIX))


def explain_unknown(pipeline: str, existing: Iterable[str]) -> SetupError:
    """Returns the error about a pipeline that has none of the streams that exist."""
    known = list_pipelines(existing)
    place = "Name another place with --state DIR or --nats URL."
    step = f"Known here: {', '.join(known)}. {place}" if known else place
    return SetupError(f"No pipeline {pipeline!r} has run here.", step)
