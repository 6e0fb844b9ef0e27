"""Who may look, and who may change something.

On this machine no token is needed, but the request has to come from the page itself. A page of
somebody else, in the same browser, is kept out by three rules: the name of the host has to be one
of this machine, so that a foreign name that is led here (DNS rebinding) is refused; browsers that
say a request comes from another site are refused; and whoever changes something has to send the
header ``X-Ebbflow``, which no foreign page can send.

Beyond this machine, or if a token was named, each request has to know the token: as a bearer token,
or in the cookie that an address with ``?token=`` is answered with.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable

from ebbflow.secret import Secret
from ebbflow.web.connection import RequestHead
from ebbflow.web.refusal import Refusal

MARK = b"x-ebbflow"
_CHALLENGE = {"www-authenticate": "Bearer"}


class PageGuard:
    """Admits requests. ``port`` tells the cookies of several pages on one machine apart."""

    def __init__(self, token: Secret | None, is_local: bool, port: int) -> None:
        self._token = token.reveal().encode() if token else None
        self._is_local = is_local
        self._cookie = f"ebbflow_{port}"

    def check_site(self, head: RequestHead) -> None:
        """Raises ``Refusal`` for a request that a page of another site has made."""
        if self._is_local and not is_local_name(_header(head, b"host")):
            raise Refusal(
                403,
                "this page answers to names of this machine only",
                next_step="Open it as localhost, or have it listen beyond this machine.",
            )
        if _header(head, b"sec-fetch-site") in (b"cross-site", b"same-site"):
            is_visit = head.method == b"GET" and _header(head, b"sec-fetch-mode") == b"navigate"
            if not is_visit:
                raise Refusal(403, "another site may not ask for this")
        if head.method not in (b"GET", b"HEAD") and not _header(head, MARK):
            raise Refusal(403, "the header X-Ebbflow is missing", next_step="Send it: X-Ebbflow: 1")

    def check_token(self, head: RequestHead) -> None:
        """Raises ``Refusal`` unless the token is not needed, or known."""
        if not self.admits(head):
            raise Refusal(
                401,
                "the token is missing or wrong",
                headers=_CHALLENGE,
                next_step="Open the address that ebbflow printed when the page was started.",
            )

    def admits(self, head: RequestHead) -> bool:
        """Returns whether the token is not needed, or known."""
        return self._token is None or self._is_known(head)

    def make_cookie(self, token: str) -> str | None:
        """Returns the cookie for whoever knows the token; ``None`` if it is wrong or not needed."""
        if self._token is None or not hmac.compare_digest(token.encode(), self._token):
            return None
        return f"{self._cookie}={self._pass}; Path=/; HttpOnly; SameSite=Strict"

    @property
    def _pass(self) -> str:
        """What the cookie says: known by whoever knows the token, and not the token itself."""
        assert self._token is not None
        return hmac.new(self._token, b"cookie", hashlib.sha256).hexdigest()

    def _is_known(self, head: RequestHead) -> bool:
        assert self._token is not None
        kind, _, token = _header(head, b"authorization").partition(b" ")
        # How long it takes to compare must not tell how much of it was right.
        if kind.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token):
            return True
        passes = _cookies(head, self._cookie.encode())
        return any(hmac.compare_digest(shown, self._pass.encode()) for shown in passes)


def is_local_name(host: bytes) -> bool:
    """Returns whether the ``Host`` of a request, with or without a port, is this machine."""
    text = host.decode("latin-1").strip().lower()
    name = text[1:].partition("]")[0] if text.startswith("[") else text.rpartition(":")[0] or text
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _header(head: RequestHead, name: bytes) -> bytes:
    return next((text for key, text in head.headers if key == name), b"")


def _cookies(head: RequestHead, name: bytes) -> Iterable[bytes]:
    for key, text in head.headers:
        if key == b"cookie":
            for pair in text.split(b";"):
                label, _, value = pair.strip().partition(b"=")
                if label == name:
                    yield value
