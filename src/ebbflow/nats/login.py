"""Where NATS is and how to log in: ``Addresses`` and ``Login``.

A login holds the contents of files, not their paths: it is made on the driver and sent with the
tasks to workers on other machines, which do not have those files. Its secrets never appear in a
text. A login that cannot work is refused when it is made, before a server has to refuse it: nkeys
and credentials are checked as text. The ``ValueError`` about a value is worded to follow the
value's name, and does not contain the value.

``Addresses`` takes a login out of the URL and passes it to the client: it is needed as well for
servers of a cluster that the client discovers, and no password can show up in a text.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from ebbflow.domain import secrets
from ebbflow.domain.errors import SetupError

INBOX = "_INBOX"
_JWT = re.compile(r"-{3,} *BEGIN NATS USER JWT *-{3,}\s+([\w-]+\.[\w-]+\.[\w-]+)\s")
_SEED = re.compile(r"-{3,} *BEGIN USER NKEY SEED *-{3,}\s+(\w+)\s")


def check_user_seed(text: str) -> str:
    """Returns the seed of a user's nkey, without spaces around it."""
    import nkeys  # the import is slow, and few logins need it

    seed = text.strip()
    try:
        prefix, raw = nkeys.decode_seed(bytearray(seed.encode()))
        whole = nkeys.encode_seed(bytes(raw), prefix) == seed.encode()
    except (nkeys.NkeysError, ValueError, IndexError):
        whole, prefix = False, None
    if not whole or prefix != nkeys.PREFIX_BYTE_USER:
        raise ValueError("is not the seed of a user's nkey, which begins with SU")
    return seed


def check_credentials(text: str) -> str:
    """Returns a .creds file reduced to the user's JWT and the seed it was made for."""
    jwt, seed = _JWT.search(f"{text}\n"), _SEED.search(f"{text}\n")
    if jwt is None or seed is None:
        raise ValueError("is not a .creds file with a user's JWT and its seed")
    try:
        checked = check_user_seed(seed[1])
    except ValueError as error:
        raise ValueError(f"has a seed that {error}") from None
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt[1]}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{checked}\n------END USER NKEY SEED------\n"
    )


VARIABLES = {
    "EBBFLOW_NATS_USER": "user",
    "EBBFLOW_NATS_PASSWORD": "password",
    "EBBFLOW_NATS_PASSWORD_FILE": "password",
    "EBBFLOW_NATS_TOKEN": "token",
    "EBBFLOW_NATS_TOKEN_FILE": "token",
    "EBBFLOW_NATS_NKEY_FILE": "nkey",
    "EBBFLOW_NATS_CREDS_FILE": "creds",
    "EBBFLOW_NATS_CA_FILE": "ca",
    "EBBFLOW_NATS_CERT_FILE": "cert",
    "EBBFLOW_NATS_KEY_FILE": "key",
    "EBBFLOW_NATS_TLS_HOSTNAME": "tls_hostname",
}
"""The environment variables that make up a login, and the field that each of them sets."""

SECRET_FILES = [
    variable
    for variable, name in VARIABLES.items()
    if variable.endswith("_FILE") and name not in ("ca", "cert")
]
"""The variables that name files which only their owner should be able to read."""

_KINDS = {"user": "a user and password", "token": "a token", "nkey": "an nkey", "creds": "creds"}


class LoginError(ValueError):
    """A login that cannot work. ``about`` are the names of the wrong fields, put into its text."""

    def __init__(self, text: str, *about: str) -> None:
        super().__init__(text, *about)
        self.text = text
        self.about = about

    def __str__(self) -> str:
        return self.text.format(*self.about)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Login:
    """Who is connecting, and with which certificates.

    One of: ``user`` with ``password``, ``token``, ``nkey`` (the seed), ``creds`` (the text of a
    .creds file). ``ca`` are the certificates to trust instead of the system's, ``cert`` and ``key``
    the client's own certificate with its key, all in PEM form. ``tls_hostname`` is the name that
    the server's certificate must have, if not the URL's. Each of these four asks for TLS.
    """

    user: str | None = None
    password: str | None = None
    token: str | None = None
    nkey: str | None = None
    creds: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    tls_hostname: str | None = None

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise LoginError("{} must be text", name)
        self._check_pairs()
        if self.nkey is not None:
            object.__setattr__(self, "nkey", _check(check_user_seed, self.nkey, "nkey"))
        if self.creds is not None:
            object.__setattr__(self, "creds", _check(check_credentials, self.creds, "creds"))
        self._check_certificates()

    def _check_pairs(self) -> None:
        kinds = [name for name in _KINDS if getattr(self, name) is not None]
        if len(kinds) > 1:
            raise LoginError("{} and {} are two logins; give one of them", *kinds[:2])
        for first, second in (("user", "password"), ("cert", "key")):
            missing = [name for name in (first, second) if getattr(self, name) is None]
            if len(missing) == 1:
                there = second if missing == [first] else first
                raise LoginError("{} is given without {}; give both of them", there, *missing)

    def _check_certificates(self) -> None:
        if self.ca is not None:
            _check(secrets.trusting, self.ca, "ca")
        if self.cert is not None and self.key is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            try:
                secrets.identify(context, self.cert, self.key)
            except ValueError as error:
                raise LoginError(f"{{}} and {{}}: {error}", "cert", "key") from None

    def __repr__(self) -> str:
        return f"Login({', '.join(self.held)})"

    @property
    def held(self) -> list[str]:
        """The names of the fields that are set; a password counts with its user."""
        names = [f.name for f in fields(self) if getattr(self, f.name) is not None]
        return [name for name in names if name != "password"]

    @property
    def kind(self) -> str | None:
        """Describes what it logs in with; ``None`` if there is no login."""
        return next((_KINDS[name] for name in _KINDS if getattr(self, name) is not None), None)

    @property
    def wants_tls(self) -> bool:
        """``True`` if the connection must use TLS."""
        return any(name in self.held for name in ("ca", "cert", "tls_hostname"))

    def make_tls_context(self) -> ssl.SSLContext:
        """Returns a new context: TLS 1.2 or newer, the server's name checked."""
        context = secrets.trusting(self.ca)
        if self.cert is not None and self.key is not None:
            secrets.identify(context, self.cert, self.key)
        return context

    @classmethod
    def from_files(
        cls,
        *,
        user: str | None = None,
        tls_hostname: str | None = None,
        **files: str | os.PathLike[str] | None,
    ) -> Login:
        """Reads files, now and not again, given the paths for ``password``, ``token``, ``nkey``,
        ``creds``, ``ca``, ``cert`` or ``key``.
        """
        unknown = files.keys() - {f.name for f in fields(cls)}
        if unknown:
            raise TypeError(f"unknown file {min(unknown)!r}")
        contents = {name: _read(name, path) for name, path in files.items() if path is not None}
        return cls(user=user, tls_hostname=tls_hostname, **contents)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Login:
        """Reads the login in ``EBBFLOW_NATS_USER``, ``…_PASSWORD``, ``…_CREDS_FILE`` and so on.

        ``SetupError`` names the variable that is wrong.
        """
        values = {
            variable: value for variable in VARIABLES if (value := environment.get(variable, ""))
        }
        try:
            return cls(**_read_values(values))
        except LoginError as error:
            names = {VARIABLES[variable]: variable for variable in values}
            about = [names.get(name, _find_variable(name)) for name in error.about]
            what = error.text.format(*about)
            raise SetupError(f"{what}.", "Set or unset the variables and try again.") from None


def _find_variable(field: str) -> str:
    """Returns the first variable that sets the field."""
    return next(variable for variable, name in VARIABLES.items() if name == field)


def _read_values(values: Mapping[str, str]) -> dict[str, Any]:
    contents: dict[str, str] = {}
    for variable, value in values.items():
        name = VARIABLES[variable]
        if name in contents:
            twice = [other for other in values if VARIABLES[other] == name]
            raise LoginError(f"{' and '.join(twice)} set the same value; set one of them")
        contents[name] = _read(name, value) if variable.endswith("_FILE") else value
    return contents


def _read(name: str, path: str | os.PathLike[str]) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        # The error does not contain the path: it may be the secret itself, in the wrong place.
        raise LoginError(f"{{}} names a file that cannot be read: {why}", name) from None
    text = text.rstrip("\r\n") if name in ("password", "token") else text
    if not text.strip():
        raise LoginError("{} names a file that is empty", name)
    return text


def _check(check: Callable[[str], Any], value: str, name: str) -> Any:
    try:
        return check(value)
    except ValueError as error:
        raise LoginError(f"{{}} {error}", name) from None


NO_LOGIN = Login()
"""Neither login nor certificates; TLS if the server requires it, with the system's authorities."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The servers to connect to, the login, and the first token of all inboxes for answers."""

    urls: tuple[str, ...]
    login: Login = NO_LOGIN
    inbox: str = INBOX

    @classmethod
    def of(cls, url: str | Iterable[str], login: Login | None = None) -> Addresses:
        """Reads one URL, several with commas in between, or a list of them.

        ``ValueError`` when there is a login in the URL and another one next to it.
        """
        texts = [url] if isinstance(url, str) else list(url)
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError("url must be a NATS URL or a list of them")
        parts = [_split(single) for text in texts for single in text.split(",")]
        logins = {(part.username, part.password) for part in parts} - {(None, None)}
        if len(logins) > 1:
            raise ValueError("the URLs have different logins; give the same one with all of them")
        user, password = logins.pop() if logins else (None, None)
        urls = tuple(f"{part.scheme}://{part.netloc.rpartition('@')[2]}" for part in parts)
        return cls(urls, _join(login or NO_LOGIN, user, password))

    def __str__(self) -> str:
        return ", ".join(self.urls)

    @property
    def wants_tls(self) -> bool:
        """``True`` if the connection must use TLS."""
        return self.login.wants_tls or any(url.startswith("tls://") for url in self.urls)

    @property
    def is_loopback(self) -> bool:
        """``True`` if every server can be reached from this machine only."""
        return all(_is_loopback(urlsplit(url).hostname or "") for url in self.urls)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _join(login: Login, user: str | None, password: str | None) -> Login:
    """Returns the login with the URL's user and password; a user without a password is a token."""
    if user is None:
        return login
    if login.kind is not None:
        raise ValueError("the URL has a login and there is another one; leave one of them out")
    if password is None:
        return replace(login, token=unquote(user))
    return replace(login, user=unquote(user), password=unquote(password))


def _split(url: str) -> SplitResult:
    """Returns the parts of one URL; the error for a wrong one does not repeat a password."""
    text = url.strip()
    parts = urlsplit(text if "://" in text else f"nats://{text}")
    try:
        if parts.scheme in ("nats", "tls") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass  # a port that is not a number
    shown = text.rpartition("@")[2]
    raise ValueError(f"{shown!r} is not a NATS URL; write for example nats://localhost:4222")
