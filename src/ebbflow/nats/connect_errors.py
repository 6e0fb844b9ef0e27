"""Why a connection was not made, in words: what is wrong, and what to do about it.

The client tells of each attempt; what it was refused for counts for more than a dead line.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence

from ebbflow.errors import SetupError
from ebbflow.nats.client import NO_CERTIFICATE, NO_TLS, refuses_login
from ebbflow.nats.login import Login

_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME = (62, 64)


def explained(server: str, login: Login, told: Sequence[Exception], advice: str) -> SetupError:
    """The error for a connection that could not be made, from what the client was told."""
    for error in reversed(told):
        found = _certificate(error) or _tls(error, login) or _login(error, login) or _limit(error)
        if found is not None:
            what, step = found
            return SetupError(f"NATS at {server} {what}.", step)
    text = _text(told[-1])
    if login.given and re.search("reset|lost|EOF", text):
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
    """What this side finds wrong with the server's certificate."""
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
    """What the server finds wrong with this side's, or a server that has no TLS at all."""
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
