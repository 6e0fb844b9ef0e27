"""The services of Numaflow's protocol: a table with one row for each kind of function.

``SERVICES`` is the only list of the kinds: the client, the server, the command line and the spec
read it. A row has the names of a kind: of its container, its files, its modes and the code that
calls it. Its methods and the classes of their messages are derived from the ``.proto`` files, so
handshakes, end marks and field numbers are defined only there.

Lint and the command line read the table without protobuf: messages are imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ebbflow.domain.code import Mode

Kind = Literal[
    "map",
    "batch-map",
    "stream-map",
    "transformer",
    "sink",
    "fallback-sink",
    "on-success-sink",
    "source",
    "store",
]
"""The kinds of functions, as ``ebbflow serve-udf`` names them."""

ContainerType = Literal[
    "udf", "udsink", "fb-udsink", "ons-udsink", "transformer", "udsource", "udstore"
]
"""The role of a function, as Numaflow names it (``NUMAFLOW_UD_CONTAINER_TYPE``)."""

MapMode = Literal["unary-map", "batch-map", "stream-map"]
"""How a map receives messages and answers, as Numaflow names it (``MAP_MODE``)."""

LARGEST = 64 * 1024 * 1024
"""The largest message that either side sends and accepts, in bytes."""

HISTORY, DELIVERIES, NACK_REASON = "ebbflow", "deliveries", "nack_reason"
"""The group of the system metadata, and its keys, that describe a redelivered message."""

SINK_GROUP, RETRY_COUNT = "sink", "retry_count"
"""The group and the key with the number of times that a sink has tried a message before."""

READY = "IsReady"
"""The method that every service has."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service, and the classes of its messages; ``streamed`` if the call stays open.

    A stream begins with a handshake of both sides. Each batch ends with a mark.
    """

    service: str
    name: str
    request: Any
    response: Any
    streamed: bool

    @property
    def path(self) -> str:
        """Its path in gRPC."""
        return f"/{self.service}/{self.name}"

    @property
    def greeting(self) -> bytes:
        """The first request of a stream."""
        return pack(self.request, handshake={"sot": True})

    @property
    def greeted(self) -> bytes:
        """The first response of a stream."""
        return pack(self.response, handshake={"sot": True})

    @property
    def end_of_requests(self) -> bytes:
        """The mark at the end of a batch of requests."""
        return pack(self.request, status={"eot": True})

    @property
    def end_of_responses(self) -> bytes:
        """The mark at the end of the responses to a batch."""
        return pack(self.response, status={"eot": True})


def pack(message: Any, **fields: Any) -> bytes:
    """Returns a message of a class with these fields, as bytes."""
    packed: bytes = message(**fields).SerializeToString()
    return packed


@cache
def methods_of(proto: str) -> Mapping[str, Method]:
    """Returns the methods of the service in a ``.proto`` file by their names."""
    from google.protobuf.message_factory import GetMessageClass

    from ebbflow.numaflow.proto import messages_of

    (service,) = messages_of(proto).DESCRIPTOR.services_by_name.values()
    return {
        method.name: Method(
            service.full_name,
            method.name,
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
            method.client_streaming,
        )
        for method in service.methods
    }


@dataclass(frozen=True, slots=True)
class Service:
    """One kind of function. ``name`` is its name for people, ``container`` its name in Numaflow.

    ``proto`` is the file with its messages, ``caller`` the code that calls a function in its own
    process. ``info`` and ``socket`` are the beginnings of the names of its files. ``modes`` are the
    modes in which code of this kind may be served, the default first. ``map_mode`` tells Numaflow
    how to send to a map. ``minimum`` is the oldest Numaflow that can call it.
    """

    name: Kind
    container: ContainerType
    proto: str
    caller: str
    info: str
    socket: str
    modes: tuple[Mode, ...] = ()
    map_mode: MapMode | None = None
    minimum: str = "1.4.0-z"

    @property
    def methods(self) -> Mapping[str, Method]:
        """Its methods by their names."""
        return methods_of(self.proto)

    @property
    def stream(self) -> Method:
        """The one stream of a map, a transformer or a sink."""
        (stream,) = (method for method in self.methods.values() if method.streamed)
        return stream

    def socket_path(self, folder: Path) -> Path:
        """Returns the socket that a function listens on."""
        return folder / f"{self.socket}.sock"

    def info_path(self, folder: Path) -> Path:
        """Returns the file in which a function says that it is ready."""
        return folder / f"{self.info}-server-info"


_ROWS: tuple[Mode, ...] = ("unary", "batch", "columnar", "pandas")
_BATCHES: tuple[Mode, ...] = ("batch", "columnar", "pandas")
_STREAMS: tuple[Mode, ...] = ("stream",)
_MAP, _SINK = "ebbflow.numaflow.remote:RemoteMap", "ebbflow.numaflow.remote:RemoteSink"
_STORE = "ebbflow.numaflow.remote:RemoteStore"
_SOURCE = "ebbflow.numaflow.remote_source:RemoteSource"
_TRANSFORM = "sourcetransform"

SERVICES: dict[Kind, Service] = {
    service.name: service
    for service in (
        Service("map", "udf", "map", _MAP, "mapper", "map", _ROWS, "unary-map"),
        Service("batch-map", "udf", "map", _MAP, "mapper", "batchmap", _BATCHES, "batch-map"),
        Service("stream-map", "udf", "map", _MAP, "mapper", "mapstream", _STREAMS, "stream-map"),
        Service(
            "transformer", "transformer", _TRANSFORM, _MAP, "sourcetransformer", _TRANSFORM, _ROWS
        ),
        Service("sink", "udsink", "sink", _SINK, "sinker", "sink", _BATCHES),
        Service("fallback-sink", "fb-udsink", "sink", _SINK, "fb-sinker", "fb-sink", _BATCHES),
        Service("on-success-sink", "ons-udsink", "sink", _SINK, "ons-sinker", "ons-sink", _BATCHES),
        Service("source", "udsource", "source", _SOURCE, "sourcer", "source"),
        Service("store", "udstore", "store", _STORE, "serving", "serving", minimum="1.5.0-z"),
    )
}
"""Every kind of function by its name."""


def find_service(container: str, map_mode: MapMode | None = None) -> Service | None:
    """Returns the service of a container, if known; ``map_mode`` selects one of the three maps."""
    fitting = [service for service in SERVICES.values() if service.container == container]
    chosen = [service for service in fitting if service.map_mode == map_mode] or fitting
    return chosen[0] if chosen else None


def service_of(container: ContainerType, map_mode: MapMode | None = None) -> Service:
    """Returns the same for a known container."""
    service = find_service(container, map_mode)
    assert service is not None, f"SERVICES has every container: {container}"
    return service
