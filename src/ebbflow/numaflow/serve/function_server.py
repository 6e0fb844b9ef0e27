"""The server of one function: its socket, its services and its shutdown.

``serve_function`` opens the function, listens, and only then writes the server-info file that the
runtime waits for. After SIGTERM no new stream is accepted; open streams may continue until the
runtime has ended them or a grace period is over. When the function has raised on a message, its
stream ends with the error and the process ends as well, as with Numaflow's SDKs: a new process
starts clean.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from ebbflow.domain.code import Mode
from ebbflow.domain.errors import SetupError
from ebbflow.domain.host import on_signals
from ebbflow.engine.blame import USER_ERRORS
from ebbflow.numaflow.proto import map_pb2
from ebbflow.numaflow.serve.function import ServedFunction
from ebbflow.numaflow.serve.messages import FunctionFailure
from ebbflow.numaflow.serve.sources import ServedSource, ServedStore
from ebbflow.numaflow.serve.streams import Concurrently, Fail, InBatches, InPieces, OneByOne
from ebbflow.numaflow.server_info import write_server_info
from ebbflow.numaflow.services import LARGEST, READY, Service, pack

_OPTIONS = (
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.max_receive_message_length", LARGEST),
)
# The most bytes in the address of a unix socket.
_LONGEST_PATH = 107
_READY = pack(map_pb2.ReadyResponse, ready=True)  # the same in every service
_HANDLERS = {
    True: grpc.stream_stream_rpc_method_handler,
    False: grpc.unary_unary_rpc_method_handler,
}
# Seconds for sending the error of a stream whose function has failed.
_FAILURE_GRACE = 2.0


@dataclass(frozen=True, slots=True)
class Serving:
    """What to serve: user code, its service, mode and folder, and the grace period for its end."""

    code: Any
    service: Service
    mode: Mode | None
    folder: Path
    name: str
    grace: float = 30.0

    @property
    def socket(self) -> Path:
        """The path of the socket."""
        return self.service.socket_path(self.folder)


def serve_function(serving: Serving) -> FunctionFailure | None:
    """Serves until a signal arrives or the function fails; returns the failure, if any."""
    server = FunctionServer(serving)

    def end(number: int, _: object) -> None:
        # The first signal ends the server gracefully, and the second one at once.
        if server.is_ending:
            os._exit(128 + number)
        server.end()

    with on_signals((signal.SIGTERM, signal.SIGINT), end):
        return server.run()


def _prepare(serving: Serving) -> None:
    path = os.fsencode(serving.socket.absolute())
    if len(path) > _LONGEST_PATH:
        raise SetupError(
            f"The socket {serving.socket} has a path of {len(path)} bytes; "
            f"a unix socket may have {_LONGEST_PATH}.",
            "Give a shorter --folder.",
        )
    try:
        serving.folder.mkdir(parents=True, exist_ok=True)
        _clean(serving)  # files of a killed process must not be found before this one listens
    except OSError as error:
        raise SetupError(
            f"The folder {serving.folder} cannot be used: {error.strerror}.",
            "Give another with --folder; inside Numaflow it exists and is writable.",
        ) from None


def _clean(serving: Serving) -> None:
    for path in (serving.service.info_path(serving.folder), serving.socket):
        path.unlink(missing_ok=True)


class FunctionServer:
    """One function on one socket. ``run`` blocks its thread; any other thread may ``end`` it."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._function = ServedFunction(serving.code, serving.service, serving.mode, serving.name)
        self._failure: FunctionFailure | None = None
        self._grace = serving.grace
        self._runner = asyncio.Runner()
        self._ended = asyncio.Event()

    def run(self) -> FunctionFailure | None:
        """Serves until the end; returns the failure of the function, if any."""
        _prepare(self._serving)
        try:
            with self._runner:
                return self._runner.run(self._serve())
        finally:
            _clean(self._serving)

    @property
    def is_ending(self) -> bool:
        """Whether it was asked to end."""
        return self._ended.is_set()

    def end(self) -> None:
        """Accepts no new streams; ends when the open ones have ended, or after the grace period."""
        self._runner.get_loop().call_soon_threadsafe(self._ended.set)

    async def _serve(self) -> FunctionFailure | None:
        try:
            await self._function.open()
        except USER_ERRORS as error:
            failure = FunctionFailure.of(self._function.container, error)
            _print(failure)
            return failure
        server = self._make_server()
        await server.start()
        write_server_info(self._serving.folder, self._serving.service)
        await self._ended.wait()
        await server.stop(self._grace)
        await self._function.close()
        return self._failure

    def _make_server(self) -> Any:
        server = grpc.aio.server(options=_OPTIONS)
        methods = self._serving.service.methods
        handlers = handlers_of(self._serving.service, self._function, self._fail)
        served: dict[str, Any] = {
            name: _HANDLERS[methods[name].streamed](handler)
            for name, handler in {**handlers, READY: _is_ready}.items()
        }
        name = methods[READY].service
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, served),))
        server.add_insecure_port(f"unix://{self._serving.socket.absolute()}")
        return server

    async def _fail(self, context: Any, failure: FunctionFailure) -> None:
        """Ends a stream or a call with a failure; also ends the server unless a system is down."""
        _print(failure)
        if not failure.unavailable and self._failure is None:
            self._failure, self._grace = failure, _FAILURE_GRACE
            # Before the error is sent, because the runtime then looks at once for a new process.
            _clean(self._serving)
            self._ended.set()
        await context.abort(failure.code, failure.details, failure.trailers)


def handlers_of(service: Service, function: ServedFunction, fail: Fail) -> dict[str, Any]:
    """Returns the handler of each method of a service except ``IsReady``."""
    match service.name:
        case "source":
            return ServedSource(function, fail).handlers
        case "store":
            return ServedStore(function, fail).handlers
        case "stream-map":
            return InPieces(function, service, fail).handlers
        case "map" | "transformer" if function.is_concurrent:
            return Concurrently(function, service, fail).handlers
        case "map" | "transformer":
            return OneByOne(function, service, fail).handlers
        case _:
            return InBatches(function, service, fail).handlers


async def _is_ready(_: bytes, __: Any) -> bytes:
    return _READY


def _print(failure: FunctionFailure) -> None:
    """Prints the failure to the container's log, where people look first."""
    with contextlib.suppress(OSError):
        print(f"{failure.stack}{failure.text}", file=sys.stderr, flush=True)
