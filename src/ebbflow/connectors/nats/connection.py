"""Connections to NATS servers of the user's that are not the pipeline's own.

What goes wrong there is put right in the spec or on that server, and errors say so.
"""

from __future__ import annotations

import asyncio
import contextlib

import nats.errors

from ebbflow.domain.errors import AccessError, SetupError
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.link import Link, connect
from ebbflow.nats.login import Addresses

_LEAVE = 5.0


def outside_link(server: Addresses, what: str) -> Link:
    """Returns a link; an error names ``what`` it is for, as in "source in"."""
    try:
        return Link(server)
    except SetupError as error:
        raise _unreached(error, what) from None


def renew_link(link: Link, what: str) -> Link:
    """Returns the link, or another one in its place if the server has ended it for good."""
    if link.client.ended is None:
        return link
    link.close()
    return outside_link(link.server, what)


async def outside_client(server: Addresses, what: str) -> SecuredClient:
    """Returns a connection on the loop that this is called on."""
    try:
        return await connect(server, "ebbflow")
    except SetupError as error:
        raise _unreached(error, what) from None


async def leave(client: SecuredClient) -> None:
    """Ends a connection, whatever state it is in."""
    with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
        await asyncio.wait_for(client.close(), _LEAVE)


def _unreached(error: SetupError, what: str) -> SetupError:
    step = f"See that it is up, and whether url, auth and tls of the {what} are right."
    return SetupError(error.what, step)


def not_allowed(error: AccessError) -> SetupError:
    """Returns the denial of something on such a server."""
    return SetupError(error.what, "Allow it there; the guide on NATS lists what is needed.")
