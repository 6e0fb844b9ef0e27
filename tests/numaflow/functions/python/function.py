"""Serves one of Numaflow's functions, chosen by the first argument, on the public Python SDK.

The second argument is the folder of sockets and server-info files; without it they are where
Numaflow has them. pynumaflow does not heed it where the container is a fallback or on-success sink.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import handlers
from pynumaflow.batchmapper import BatchMapAsyncServer
from pynumaflow.mapper import MapAsyncServer, MapServer
from pynumaflow.mapstreamer import MapStreamAsyncServer
from pynumaflow.sinker import SinkAsyncServer, SinkServer
from pynumaflow.sourcer import SourceAsyncServer
from pynumaflow.sourcetransformer import SourceTransformAsyncServer, SourceTransformServer
from source import Lines

_TRANSFORMER = ("sourcetransform.sock", "sourcetransformer-server-info")
_MAP = ("map.sock", "mapper-server-info")
_SINK = ("sink.sock", "sinker-server-info")

KINDS: dict[str, tuple[Callable[..., Any], Any, tuple[str, str]]] = {
    "map": (MapServer, handlers.map_one, _MAP),
    "async-map": (MapAsyncServer, handlers.map_one_async, _MAP),
    "batch-map": (BatchMapAsyncServer, handlers.map_batch, ("batchmap.sock", _MAP[1])),
    "stream-map": (MapStreamAsyncServer, handlers.map_stream, ("mapstream.sock", _MAP[1])),
    "transformer": (SourceTransformServer, handlers.transform, _TRANSFORMER),
    "async-transformer": (SourceTransformAsyncServer, handlers.transform_async, _TRANSFORMER),
    "sink": (SinkServer, handlers.sink, _SINK),
    "async-sink": (SinkAsyncServer, handlers.sink_async, _SINK),
    "fallback-sink": (SinkServer, handlers.sink, ("fb-sink.sock", "fb-sinker-server-info")),
    "on-success-sink": (SinkServer, handlers.sink, ("ons-sink.sock", "ons-sinker-server-info")),
    "source": (SourceAsyncServer, Lines, ("source.sock", "sourcer-server-info")),
}


def main(kind: str, folder: str = "/var/run/numaflow") -> None:
    """Serve until the process is asked to end."""
    server, handler, (socket, info) = KINDS[kind]
    code = handler() if isinstance(handler, type) else handler
    server(
        code,
        sock_path=os.path.join(folder, socket),
        server_info_file=os.path.join(folder, info),
    ).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
