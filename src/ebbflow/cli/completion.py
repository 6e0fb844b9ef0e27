"""What a shell completes: names of pipelines and vertices, from the streams that they have.

A shell waits while it asks, so nothing is started for it. The folder of the embedded server says
which streams there are, whether it runs or not; a server of the user's is asked for a second.
Whatever fails, there is nothing to complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import typer

_PATIENCE = 1.0


def complete_pipelines(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the pipelines that have run where the command looks."""
    from ebbflow.streams.names import list_pipelines

    return [name for name in list_pipelines(_find_streams(ctx)) if name.startswith(incomplete)]


def complete_vertices(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the vertices of the pipeline that the command line names."""
    from ebbflow.streams.names import Names

    partitions = Names(str(ctx.params.get("pipeline"))).partitions_in(_find_streams(ctx))
    return sorted({vertex for vertex, _ in partitions if vertex.startswith(incomplete)})


def _find_streams(ctx: typer.Context) -> list[str]:
    """Returns the names of streams; none if they cannot be had."""
    server = ctx.params.get("nats") or os.environ.get("EBBFLOW_NATS_URL")
    try:
        if server:
            return _ask_server(str(server))
        return list(_look_in_folder(Path(ctx.params.get("state") or ".ebbflow")))
    except Exception:  # a shell that completes must not show an error
        return []


def _look_in_folder(state: Path) -> Iterator[str]:
    for streams in (state / "nats" / "jetstream").glob("*/streams"):
        yield from (entry.name for entry in streams.iterdir())


def _ask_server(url: str) -> list[str]:
    from concurrent.futures import ThreadPoolExecutor

    from ebbflow.nats import api
    from ebbflow.nats.locate import find_own_server, open_link
    from ebbflow.streams.names import PREFIX

    def ask() -> list[str]:
        server = find_own_server(url)
        assert server is not None
        with open_link(server) as link:
            return link.run(api.list_streams(link.client, PREFIX), timeout=_PATIENCE)

    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(ask).result(_PATIENCE)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
