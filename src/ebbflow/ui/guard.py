"""Who may look, and who may change something.

On this machine no token is needed, but the request has to come from the page itself. A page of
somebody else, in the same browser, is kept out by three rules: those of ``web/guard.py`` about the
host and about other sites, and whoever changes something has to send the header ``X-Ebbflow``,
which no foreign page can send.

Beyond this machine, or if a token was named, each request has to know the token: as a bearer token,
or in the cookie that whoever names the token is given, in the form or with ``?token=``.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from ebbflow.domain.secrets import Secret
from ebbflow.web.connection import RequestHead
from ebbflow.web.guard import CHALLENGE, SiteGuard, TokenGuard, find_header
from ebbflow.web.refusal import Refusal

MARK = b"x-ebbflow"
_ADVICE = "open it as localhost, or have it listen beyond this machine"


class PageGuard:
    """Admits requests. ``port`` tells the cookies of several pages on one machine apart.

    ``secured`` if the page speaks TLS itself; then browsers send the cookie over TLS only.
    """

    def __init__(
        self, token: Secret | None, is_local: bool, port: int, secured: bool = False
    ) -> None:
        self._tokens = TokenGuard(token)
        self._sites = SiteGuard(() if is_local else None, _ADVICE, _ADVICE)
        self._cookie = f"ebbflow_{port}"
        self._secured = secured

    def check_site(self, head: RequestHead) -> None:
        """Raises ``Refusal`` for a request that a page of another site has made."""
        self._sites.check(head)

    def check_mark(self, head: RequestHead) -> None:
        """Raises ``Refusal`` for a change without the header that foreign pages cannot send."""
        if head.method not in (b"GET", b"HEAD") and not find_header(head, MARK):
            raise Refusal(403, "the header X-Ebbflow is missing", next_step="Send it: X-Ebbflow: 1")

    def check_token(self, head: RequestHead) -> None:
        """Raises ``Refusal`` unless the token is not needed, or known."""
        if not self.admits(head):
            raise Refusal(
                401,
                "the token is missing or wrong",
                headers=CHALLENGE,
                next_step="Open the address that ebbflow printed when the page was started.",
            )

    def admits(self, head: RequestHead) -> bool:
        """Returns whether the token is not needed, or known; 429 after too many guesses."""
        if not self._tokens.is_needed:
            return True
        # The cookie first: it cannot be guessed, so whoever has it need not wait for guessers.
        shown = _cookies(head, self._cookie.encode())
        expected = self._tokens.derive(b"cookie").encode()
        return any(hmac.compare_digest(each, expected) for each in shown) or (
            self._tokens.has_bearer(head)
        )

    def make_cookie(self, token: str, head: RequestHead) -> str | None:
        """Returns the cookie for whoever knows the token; ``None`` if it is wrong or not needed.

        A proxy that speaks TLS says so in ``X-Forwarded-Proto``. Anybody may write that, but all
        they get is a cookie that their own browser sends over TLS only.
        """
        if not self._tokens.is_right(token.encode(), head.client):
            return None
        proxied = find_header(head, b"x-forwarded-proto").strip().lower() == b"https"
        secure = "; Secure" if self._secured or proxied else ""
        value = self._tokens.derive(b"cookie")
        return f"{self._cookie}={value}; Path=/; HttpOnly; SameSite=Strict{secure}"


def _cookies(head: RequestHead, name: bytes) -> Iterable[bytes]:
    for key, text in head.headers:
        if key == b"cookie":
            for pair in text.split(b";"):
                label, _, value = pair.strip().partition(b"=")
                if label == name:
                    yield value
