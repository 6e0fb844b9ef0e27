"""Making a connection to NATS; and why it was not made, in words.

Every server is tried first once. The client tells of each attempt, and the error says what is wrong
and what to do about it: a refusal counts for more than a dead line.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import Iterator, Sequence
from typing import Any

import nats.errors
from nats.aio.client import RawCredentials

from ebbflow.domain.errors import SetupError
from ebbflow.nats.address import Addresses
from ebbflow.nats.client import NO_CERTIFICATE, NO_TLS, SecuredClient, refuses_login
from ebbflow.nats.login import Login

_WAIT = 0.2
# The client's own way of starting over hangs after a failed TLS handshake, so rounds are ours.
_FIRST: dict[str, Any] = {
    "allow_reconnect": False,
    "dont_randomize": True,
    "max_reconnect_attempts": 1,
    "connect_timeout": 5,
    "reconnect_time_wait": _WAIT,
    "ping_interval": 3,
    # What may wait in the client while it is busy; a chunk's frames come all at once.
    "pending_size": 64 * 1024 * 1024,
}
_LATER = {"allow_reconnect": True, "max_reconnect_attempts": -1}
_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME = (62, 64)


async def connect(
    server: Addresses, name: str, advice: str = "Start it, or correct the URL."
) -> SecuredClient:
    """Returns a connection that, once made, is made again whenever it is lost.

    ``SetupError`` when it cannot be made; ``advice`` ends it when there is nobody at all.
    """
    errors: list[Exception] = []

    async def listen(error: Exception) -> None:
        # The last few, to explain a failure; the client reconnects by itself.
        errors[:] = [*errors[-9:], error]

    for urls in _rounds(server.urls):
        client = SecuredClient(server)
        try:
            await client.connect(
                servers=urls, name=name, error_cb=listen, **_options(server), **_FIRST
            )
        except (nats.errors.Error, OSError, ValueError) as error:
            errors = errors or [error]
            client.abandon()
            await asyncio.sleep(_WAIT)
        else:
            # A server that was never there is an error; one that went away is waited for.
            client.options |= _LATER
            return client
    raise _explain(str(server), server.login, errors, advice) from errors[-1]


def _rounds(servers: Sequence[str]) -> Iterator[list[str]]:
    """Yields the order of the servers in each round: all come first once, in any order."""
    urls = random.sample(servers, len(servers))
    for first in range(max(2, len(urls))):
        yield [*urls[first:], *urls[:first]]


def _options(server: Addresses) -> dict[str, Any]:
    login = server.login
    options: dict[str, Any] = {"tls_hostname": login.tls_hostname, "inbox_prefix": server.inbox}
    if login.creds is not None:
        return options | {"user_credentials": RawCredentials(login.creds)}
    if login.nkey is not None:
        return options | {"nkeys_seed_str": login.nkey}
    return options | {"user": login.user, "password": login.password, "token": login.token}


def _explain(server: str, login: Login, errors: Sequence[Exception], advice: str) -> SetupError:
    """Returns the error for a connection that could not be made, from what the client heard."""
    for error in reversed(errors):
        reason = _certificate(error) or _tls(error, login) or _login(error, login) or _limit(error)
        if reason is not None:
            what, step = reason
            return SetupError(f"NATS at {server} {what}.", step)
    text = _text(errors[-1])
    if login.held and re.search("reset|lost|EOF", text):
        # A refusal, as a rule: the end of the connection can overtake the reason for it.
        return SetupError(f"NATS at {server} ended the connection: {text}.", _check(login))
    return SetupError(f"No NATS server answers at {server}: {text}.", advice)


def _text(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text.removeprefix("nats: ").strip().strip("'").removesuffix(".") or "no answer"


def _check(login: Login) -> str:
    shown = [login.kind, "a certificate" if login.cert else None]
    return f"It was given {' and '.join(filter(None, shown)) or 'no login'}: check that."


def _certificate(error: Exception) -> tuple[str, str] | None:
    """Says what this side finds wrong with the server's certificate."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return None
    if error.verify_code == _EXPIRED:
        return "has a certificate that has expired", "Renew it."
    if error.verify_code == _NOT_YET:
        return "has a certificate that is not valid yet", "Check the clocks of both machines."
    if error.verify_code in _OTHER_NAME:
        return (
            f"has a certificate for another host: {error.verify_message.removesuffix('.')}",
            "Use a name that is in it, or set EBBFLOW_NATS_TLS_HOSTNAME to one.",
        )
    return (
        f"has a certificate that is not trusted: {error.verify_message}",
        "Name the certificate of its authority with EBBFLOW_NATS_CA_FILE.",
    )


def _tls(error: Exception, login: Login) -> tuple[str, str] | None:
    """Says what the server finds wrong with this side's, or that it has no TLS at all."""
    text = str(error)
    if text == NO_TLS:
        return "does not use TLS, which the URL or the login asks for", "Switch it on there."
    if text == NO_CERTIFICATE:
        step = "Name one with EBBFLOW_NATS_CERT_FILE and its key with EBBFLOW_NATS_KEY_FILE."
        return "wants a certificate of the client", step
    if not isinstance(error, ssl.SSLError):
        return None
    why = (error.reason or text).replace("_", " ").lower()
    if login.cert is not None and re.search("certificate|unknown ca", why):
        return f"refused the certificate of the client: {why}", "Use one that it trusts."
    return f"did not agree on TLS: {why}", "Check how TLS is set up there."


def _login(error: Exception, login: Login) -> tuple[str, str] | None:
    if not refuses_login(error):
        return None
    text = _text(error)
    if login.kind is None:
        return (
            f"wants a login: {text}",
            "Give one, in the URL or with the variables EBBFLOW_NATS_USER and so on.",
        )
    return f"refused the login: {text}", _check(login)


def _limit(error: Exception) -> tuple[str, str] | None:
    if "control line" not in str(error):
        return None
    # Creds are sent on one line, with all the permissions that are in them.
    step = "Raise its max_control_line, or give the permissions to a signing key instead."
    return "takes no login as long as this one", step
