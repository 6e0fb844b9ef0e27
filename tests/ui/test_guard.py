"""Who may look and who may change something."""

import pytest

from ebbflow.secret import Secret
from ebbflow.ui.guard import PageGuard, is_local_name
from ebbflow.web.connection import RequestHead
from ebbflow.web.refusal import Refusal

LOCAL = (b"host", b"localhost:8321")
OPEN = PageGuard(None, True, 8321)
CLOSED = PageGuard(Secret("let me in"), False, 8321)


def head(*headers: tuple[bytes, bytes], method: bytes = b"GET") -> RequestHead:
    return RequestHead(method, b"/api/pipelines", [*headers])


@pytest.mark.parametrize(
    "host",
    [b"localhost", b"LOCALHOST:1", b"127.0.0.1:8321", b"127.9.9.9", b"[::1]:80", b"a.localhost"],
)
def test_names_of_this_machine(host):
    assert is_local_name(host)
    OPEN.check_site(head((b"host", host)))


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
@pytest.mark.parametrize(
    "host", [b"", b"evil.com", b"evil.com:8321", b"localhost.evil.com", b"127.0.0.1.evil.com",
             b"10.0.0.1", b"[::2]:80", b"\xff", b"[", b"localhost@evil.com", b"evil.com#localhost"]
)  # fmt: skip
def test_a_foreign_name_that_is_led_here_is_refused(host):
    assert not is_local_name(host)
    with pytest.raises(Refusal) as raised:
        OPEN.check_site(head((b"host", host)))
    assert raised.value.status == 403


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_a_page_of_another_site_may_link_here_and_nothing_else():
    site = (b"sec-fetch-site", b"cross-site")
    OPEN.check_site(head(LOCAL, site, (b"sec-fetch-mode", b"navigate")))
    with pytest.raises(Refusal):
        OPEN.check_site(head(LOCAL, site, (b"sec-fetch-mode", b"no-cors")))
    with pytest.raises(Refusal):
        OPEN.check_site(
            head(
                LOCAL, site, (b"sec-fetch-mode", b"navigate"), (b"x-ebbflow", b"1"), method=b"POST"
            )
        )


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_whoever_changes_something_sends_a_header_that_forms_cannot_send():
    OPEN.check_site(head(LOCAL, (b"x-ebbflow", b"1"), method=b"POST"))
    with pytest.raises(Refusal) as raised:
        OPEN.check_site(head(LOCAL, (b"content-type", b"text/plain"), method=b"POST"))
    assert (raised.value.status, raised.value.next_step) == (403, "Send it: X-Ebbflow: 1")


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_the_token_is_asked_for_as_bearer_or_cookie():
    OPEN.check_token(head())
    CLOSED.check_token(head((b"authorization", b"Bearer let me in")))
    cookie = CLOSED.make_cookie("let me in")
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert "let me in" not in cookie
    pair = cookie.partition(";")[0].encode()
    CLOSED.check_token(head((b"cookie", b"a=b; " + pair + b"; c")))
    other = PageGuard(Secret("let me in"), False, 9)
    for wrong in (
        head(),
        head((b"authorization", b"Bearer let me")),
        head((b"authorization", b"Basic let me in")),
        head((b"cookie", b"ebbflow_8321=let me in")),
        head((b"cookie", other.make_cookie("let me in").partition(";")[0].encode())),
    ):
        with pytest.raises(Refusal) as raised:
            CLOSED.check_token(wrong)
        assert raised.value.status == 401


@pytest.mark.parametrize("token", ["", "let me", "let me in ", "ä"])
def test_a_wrong_token_gets_no_cookie(token):
    assert CLOSED.make_cookie(token) is None
    assert OPEN.make_cookie(token) is None
