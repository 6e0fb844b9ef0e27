"""Server-info files, in which functions report that they are ready, and folders for sockets.

Every SDK of Numaflow writes such a file next to its socket, as JSON followed by an end marker. A
function whose SDK is too old, or that listens where it cannot be called, is refused here with a
remedy: its stream would only break later, for no visible reason.

The folder of a function's sockets is new for each process, short and private, and none is left
behind. A launcher removes its function's folder when it ends. If the launcher was killed, the
folder is removed when the next function starts: a lock shows that it is no longer in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from ebbflow.domain.errors import SetupError
from ebbflow.domain.host import LONGEST_SOCKET_PATH
from ebbflow.numaflow.services import ContainerType, MapMode, Service, service_of

END_MARKER = "U+005C__END__"
NACK_OPTIONS = "NACK_OPTIONS"
"""In the metadata of a source that takes the options of nacks whatever its version is."""

_MAP_MODES = get_args(MapMode)
# The release of Numaflow's own Python SDK whose protocol this is; it has the nack of a source.
_SDK_VERSION = "0.14.0"

_Version = tuple[int, int, int]
_OLDEST: dict[str, dict[str, _Version]] = {
    "call": {"go": (0, 9, 0), "java": (0, 9, 0), "python": (0, 9, 0), "rust": (0, 2, 0)},
    "on-success": {"go": (0, 10, 2), "java": (0, 10, 2), "python": (0, 11, 1), "rust": (0, 4, 0)},
    "nack": {"go": (0, 11, 0), "java": (0, 11, 0), "python": (0, 11, 0), "rust": (0, 4, 0)},
    "nack options": {"go": (0, 12, 0), "python": (0, 15, 0), "rust": (0, 6, 0)},
}
"""The first release of the SDK for each language that supports a feature."""
_PREFIX = "ebf-"
_LONGEST_NAME = len("/sourcetransform.sock")
# A younger folder may belong to a launcher that is about to lock it.
_OLD = 60.0


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server-info of a function; empty texts where it has none."""

    protocol: str = "uds"
    language: str = ""
    version: str = ""
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def map_mode(self) -> MapMode:
        """How a map is to be called; one message at a time if it does not say."""
        mode = self.metadata.get("MAP_MODE", "unary-map")
        return cast("MapMode", mode) if mode in _MAP_MODES else "unary-map"

    @property
    def takes_nacks(self) -> bool:
        """Whether a source with this SDK has the call ``NackFn``; true if that is not known."""
        return self._is_at_least(_OLDEST["nack"])

    @property
    def takes_nack_options(self) -> bool:
        """Whether a source with this SDK takes nack options; false if that is not known."""
        oldest = _OLDEST["nack options"]
        known = self.language in oldest and _numbers(self.version) is not None
        return NACK_OPTIONS in self.metadata or (known and self._is_at_least(oldest))

    def _is_at_least(self, oldest: dict[str, _Version]) -> bool:
        version = _numbers(self.version)
        return version is None or version >= oldest.get(self.language, (0, 0, 0))


def info_path(folder: Path, container: ContainerType) -> Path:
    """Returns where a function writes its server-info."""
    return service_of(container).info_path(folder)


def socket_path(folder: Path, container: ContainerType, info: ServerInfo) -> Path:
    """Returns the socket that a function listens on, which for a map depends on its mode."""
    if "MULTIPROC" in info.metadata:
        return folder / "multiproc0.sock"  # the first of one or more servers
    return service_of(container, info.map_mode).socket_path(folder)


def read_server_info(folder: Path, container: ContainerType) -> ServerInfo | None:
    """Returns the function's server-info; ``None`` until the file is complete.

    ``SetupError`` if it is complete and cannot be decoded.
    """
    path = info_path(folder, container)
    try:
        text = path.read_text(encoding="utf-8", errors="replace").rstrip()
    except (FileNotFoundError, PermissionError):  # being made
        return None
    if not text.endswith(END_MARKER):
        return None
    try:
        facts = json.loads(text.removesuffix(END_MARKER))
        return ServerInfo(
            protocol=str(facts.get("protocol") or "uds").lower(),
            language=str(facts.get("language") or "").lower(),
            version=str(facts.get("version") or ""),
            metadata=_texts(facts.get("metadata")),
        )
    except (ValueError, AttributeError):
        raise SetupError(
            f"The function's file {path.name} is not what Numaflow's SDKs write: {text[:200]!r}.",
            "Build the function with one of them, or with: ebbflow serve-udf",
        ) from None


def check_server_info(info: ServerInfo, container: ContainerType) -> None:
    """Raises ``SetupError`` with a remedy if a function cannot be called."""
    oldest = _OLDEST["on-success" if container == "ons-udsink" else "call"]
    if not info._is_at_least(oldest):
        wanted = ".".join(map(str, oldest[info.language]))
        raise SetupError(
            f"The function's SDK is too old: {info.language} {info.version}.",
            f"Build it with version {wanted} or newer.",
        )
    endpoints = [part for part in info.metadata.get("MULTIPROC_ENDPOINTS", "").split(",") if part]
    servers = info.metadata.get("MULTIPROC", "1")
    if info.protocol == "tcp" or len(endpoints) > 1 or servers != "1":
        several = "runs several servers" if info.protocol != "tcp" else "listens on TCP ports"
        raise SetupError(
            f"The function {several}, and only one unix socket can be called.",
            "Start one server (in Python MapServer or MapAsyncServer in place of "
            "MapMultiprocServer), and give the vertex more partitions.",
        )


def own_server_info(service: Service) -> ServerInfo:
    """Returns the server-info of a function that Ebbflow serves."""
    metadata: dict[str, str] = {"MAP_MODE": service.map_mode} if service.map_mode else {}
    if service.name == "source":
        metadata[NACK_OPTIONS] = "true"
    return ServerInfo("uds", "python", _SDK_VERSION, metadata)


def write_server_info(folder: Path, service: Service) -> None:
    """Tells the runtime that a function is ready. The file appears only once it is complete."""
    facts = asdict(own_server_info(service)) | {"minimum_numaflow_version": service.minimum}
    path = service.info_path(folder)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(facts) + END_MARKER, encoding="utf-8")
    os.replace(fresh, path)


def _numbers(version: str) -> _Version | None:
    """Returns the first three numbers of a version; ``None`` if it is not one."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def _texts(metadata: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in (metadata or {}).items()}


# --- the folder of the sockets --------------------------------------------------------------------


def make_folder() -> Path:
    """Makes a folder for sockets, with a short path as they require; removes abandoned folders.

    Its parent folder is open only to this user. The folder itself is open to every user, because a
    container may run as any of them.
    """
    parent = _parent()
    for outer in _abandoned(parent):
        shutil.rmtree(outer, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)) / "s"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def remove_folder(folder: Path) -> None:
    """Removes a folder, with all that is in it."""
    shutil.rmtree(folder.parent, ignore_errors=True)


def lock_folder(folder: Path) -> int:
    """Returns a descriptor that locks the folder for as long as any process has it open."""
    descriptor = os.open(folder.parent, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _parent() -> Path:
    usual, room = tempfile.gettempdir(), len(f"/{_PREFIX}12345678/s") + _LONGEST_NAME
    return Path(usual if len(usual) + room <= LONGEST_SOCKET_PATH else "/tmp")  # noqa: S108


def _abandoned(parent: Path) -> Iterator[Path]:
    """Yields the folders of launchers that have died."""
    for outer in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = outer.stat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > _OLD:
                with _unlocked(outer):
                    yield outer


@contextlib.contextmanager
def _unlocked(outer: Path) -> Iterator[None]:
    """Holds the lock of a folder; raises ``OSError`` if another process does."""
    descriptor = os.open(outer, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
