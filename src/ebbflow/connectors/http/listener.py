"""The web server of HTTP sources: one for each host and port of a pipeline, whoever shares it.

It runs on a loop and a thread of its own, together with a connection to NATS. Whatever arrives on
its port, the answer is JSON with a reason or the connection is closed: a request is bounded in time
and size from its first byte, and so is the number of connections.
"""

from __future__ import annotations

import contextlib
import ipaddress
import resource
import socket
import ssl
import time
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ebbflow import tls
from ebbflow.buffers.feed import Spot
from ebbflow.connectors.http.connection import GuardedConnection
from ebbflow.connectors.http.request import Refusal, unavailable
from ebbflow.connectors.http.settings import Certificate, Endpoint
from ebbflow.errors import SetupError
from ebbflow.nats.address import Addresses
from ebbflow.nats.link import Link

_END = 10.0
_SETTLING = 5.0
_BACKLOG = 1_024
_KEEP_ALIVE = 15
_MOST_CONNECTIONS = 4_096


class Taker(Protocol):
    """A vertex that takes posts in."""

    @property
    def failure(self) -> str | None:
        """The reason why it takes in nothing at the moment; ``None`` while it does."""

    async def take(self, request: Request) -> dict[str, object]:
        """Stores what was posted and returns the answer; ``Refusal`` if it is not stored."""


class HttpListener:
    """One port, with a loop and a connection to NATS of its own.

    ``takers`` are those who take posts in, by the vertex that they feed.
    """

    def __init__(self, endpoint: Endpoint, server: Addresses, read_timeout: float) -> None:
        self.endpoint = endpoint
        self.takers: dict[str, Taker] = {}
        tls = _tls(endpoint.certificate)
        self._socket = _bind(endpoint)
        self.url = _url(self._socket, secured=tls is not None)
        try:
            self.link = Link(server)
        except BaseException:
            self._socket.close()
            raise
        self._server = uvicorn.Server(self._config(read_timeout, tls))
        self._serving: Future[None] | None = None
        self._began = time.monotonic()

    @property
    def failure(self) -> str | None:
        """The reason why nobody is heard; ``None`` while all is well."""
        if self._serving is not None and self._serving.done():
            return "its web server has ended"
        return None if self.link.client.is_connected else "there is no connection to NATS"

    def add(self, vertex: str, taker: Taker) -> None:
        """Has posts to the vertex taken in; the first of them begins to listen."""
        self.takers[vertex] = taker
        if self._serving is None:
            self._serving = self.link.submit(self._server.serve(sockets=[self._socket]))

    def stop(self) -> None:
        """Listens no more, and lets go of everything."""
        self._server.should_exit = True
        if self._serving is not None:
            with contextlib.suppress(TimeoutError):
                self._serving.exception(_END)
        self._socket.close()
        self.link.close()

    def _config(self, read_timeout: float, tls: ssl.SSLContext | None) -> uvicorn.Config:
        config = uvicorn.Config(
            self._app(),
            http=partial(  # type: ignore[arg-type]  # it is only ever called
                GuardedConnection, within=read_timeout, most=_most_connections()
            ),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=1,
        )
        config.load()
        config.ssl = tls
        return config

    # --- requests -------------------------------------------------------------------------------

    def _app(self) -> Starlette:
        app = Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                Route("/vertices/{vertex}", self._post, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _explain, Exception: _tell_broken},
        )
        app.router.redirect_slashes = False
        return app

    async def _health(self, request: Request) -> Response:
        failures = [taker.failure for taker in list(self.takers.values())]
        if failure := next(filter(None, failures), None):
            return JSONResponse({"reason": failure}, 503)
        return JSONResponse({"status": "ok"})

    async def _post(self, request: Request) -> Response:
        taker = self.takers.get(request.path_params["vertex"])
        try:
            if taker is None:
                raise self._unknown()
            return JSONResponse(await taker.take(request))
        except Refusal as refusal:
            return JSONResponse({"reason": refusal.reason}, refusal.status, refusal.headers)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is there to hear it

    def _unknown(self) -> Refusal:
        """Those who share the port are added one after another: who is not there yet may come."""
        if time.monotonic() - self._began < _SETTLING:
            return unavailable("there is no http source of that name here yet")
        return Refusal(404, "there is no http source of that name here")


def _explain(request: Request, error: Exception) -> Response:
    """Answers what the framework refuses: an unknown path, a method that is not allowed."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"reason": error.detail}, error.status_code, error.headers)


def _tell_broken(request: Request, error: Exception) -> Response:
    reason = f"the http source failed: {type(error).__name__}"
    return JSONResponse({"reason": reason}, 500, {"connection": "close"})


# --- listeners by where they are ----------------------------------------------------------------

_shared: dict[tuple[str, str, int], HttpListener] = {}


def acquire(spot: Spot, endpoint: Endpoint, read_timeout: float) -> HttpListener:
    """Returns the listener of the vertex's pipeline there, one for all vertices that share it."""
    listener = _shared.get(key := (spot.pipeline, endpoint.host, endpoint.port))
    if listener is None:
        listener = _shared[key] = HttpListener(endpoint, spot.link.server, read_timeout)
    elif listener.endpoint != endpoint:
        raise SetupError(
            f"Two http sources share {endpoint.host}:{endpoint.port} and have different "
            "certificates.",
            "Give both the same tls, or different ports.",
        )
    return listener


def release(spot: Spot, listener: HttpListener) -> None:
    """Ends the listening of a vertex; the port is free when the last one has ended."""
    listener.takers.pop(spot.vertex, None)
    if not listener.takers:
        del _shared[spot.pipeline, listener.endpoint.host, listener.endpoint.port]
        listener.stop()


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach it; ``SetupError`` when there is no such host."""
    return all(ipaddress.ip_address(address[0]).is_loopback for _, address in _resolve(host, 0))


def _resolve(host: str, port: int) -> list[tuple[int, Any]]:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SetupError(
            f"An http source is to listen on {host}, which is no address of this machine: "
            f"{error.strerror}.",
            "Correct its host.",
        ) from None
    return [(family, address) for family, _, _, _, address in addresses]


def _bind(endpoint: Endpoint) -> socket.socket:
    family, address = _resolve(endpoint.host, endpoint.port)[0]
    # Named as TCP, or asyncio would let each answer wait for the client to acknowledge its head.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        # A port is taken as soon as somebody listens, not before.
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise SetupError(
            f"An http source cannot listen on {endpoint.host}:{endpoint.port}: {error.strerror}.",
            "Stop what listens there, or set ports to another one.",
        ) from None
    return bound


def _url(bound: socket.socket, secured: bool) -> str:
    """Returns the address, with the port that the system gave."""
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if secured else 'http'}://{shown}:{port}"


def _tls(certificate: Certificate | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        tls.identify(context, certificate.chain, certificate.key.reveal())
    except ValueError as error:
        raise SetupError(f"The tls of an http source: {error}.", "Correct cert and key.") from None
    return context


def _most_connections() -> int:
    """Files are needed for other things, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(_MOST_CONNECTIONS, soft // 2)
