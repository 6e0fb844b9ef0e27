"""The kinds of functions that can be served, and what each says of itself when it is ready.

Numaflow looks for a function under fixed names in one folder. The server-info file tells it that
the function is ready and which version of the protocol it speaks; it is written last, and whole.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from ebbflow.domain.code import Mode
from ebbflow.numaflow.server_info import (
    END_MARKER,
    NACK_OPTIONS,
    ContainerType,
    MapMode,
    ServerInfo,
    info_path,
    socket_path,
)

# The release of Numaflow's own Python SDK whose protocol this is; it has the nack of a source.
_SDK_VERSION = "0.14.0"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of function. ``container`` is what Numaflow calls its container.

    ``modes`` are the ways in which the function may be called, the usual one first. ``map_mode``
    tells Numaflow how to send to a map. ``minimum`` is the oldest Numaflow that can call it.
    """

    name: str
    container: ContainerType
    modes: tuple[Mode, ...] = ()
    map_mode: MapMode | None = None
    minimum: str = "1.4.0-z"

    @property
    def server_info(self) -> ServerInfo:
        """What the function says of itself."""
        metadata: dict[str, str] = {"MAP_MODE": self.map_mode} if self.map_mode else {}
        if self.container == "udsource":
            metadata[NACK_OPTIONS] = "true"
        return ServerInfo("uds", "python", _SDK_VERSION, metadata)

    def socket(self, folder: Path) -> Path:
        """Returns the socket that the function listens on."""
        return socket_path(folder, self.container, self.server_info)

    def info_file(self, folder: Path) -> Path:
        """Returns the file that says that the function is ready."""
        return info_path(folder, self.container)


_ROWS: tuple[Mode, ...] = ("unary", "batch", "columnar", "pandas")
_BATCHES: tuple[Mode, ...] = ("batch", "columnar", "pandas")

KINDS = {
    kind.name: kind
    for kind in (
        Kind("map", "udf", _ROWS, "unary-map"),
        Kind("batch-map", "udf", _BATCHES, "batch-map"),
        Kind("stream-map", "udf", ("stream",), "stream-map"),
        Kind("transformer", "transformer", _ROWS),
        Kind("sink", "udsink", _BATCHES),
        Kind("fallback-sink", "fb-udsink", _BATCHES),
        Kind("on-success-sink", "ons-udsink", _BATCHES),
        Kind("source", "udsource"),
        Kind("store", "udstore", minimum="1.5.0-z"),
    )
}
"""Every kind by the name that people give."""


def kind_of_container(container: str) -> Kind | None:
    """Returns the kind that a container of Numaflow holds; of the three maps, the unary one."""
    return next((kind for kind in KINDS.values() if kind.container == container), None)


def write_server_info(folder: Path, kind: Kind) -> None:
    """Tells the runtime that the function is ready. The file is complete before it is there."""
    facts = asdict(kind.server_info) | {"minimum_numaflow_version": kind.minimum}
    path = kind.info_file(folder)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(facts) + END_MARKER, encoding="utf-8")
    os.replace(fresh, path)
