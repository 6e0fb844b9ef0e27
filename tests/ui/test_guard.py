"""Who may look and who may change something."""

import pytest

from ebbflow.domain.secrets import Secret
from ebbflow.web.exchange import HttpRequest, Refusal
from ebbflow.web.guard import WebUiGuard

LOCAL = (b"host", b"localhost:8321")
OPEN = WebUiGuard(None, True, 8321)
CLOSED = WebUiGuard(Secret("let me in"), False, 8321)


def head(*headers: tuple[bytes, bytes], method: bytes = b"GET") -> HttpRequest:
    return HttpRequest(method, b"/api/pipelines", [*headers])


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_on_this_machine_a_foreign_name_is_refused_and_beyond_it_the_token_counts():
    foreign = (b"host", b"evil.com:8321")
    with pytest.raises(Refusal) as raised:
        OPEN.check_site(head(foreign))
    assert raised.value.reason == (
        "this server answers to names of this machine only; open it as localhost, or have it "
        "listen beyond this machine"
    )
    CLOSED.check_site(head(foreign))


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
    OPEN.check_mark(head(LOCAL, (b"x-ebbflow", b"1"), method=b"POST"))
    with pytest.raises(Refusal) as raised:
        OPEN.check_mark(head(LOCAL, (b"content-type", b"text/plain"), method=b"POST"))
    assert (raised.value.status, raised.value.next_step) == (403, "Send it: X-Ebbflow: 1")


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_the_token_is_asked_for_as_bearer_or_cookie():
    OPEN.check_token(head())
    CLOSED.check_token(head((b"authorization", b"Bearer let me in")))
    cookie = CLOSED.make_cookie("let me in", head())
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert "let me in" not in cookie
    pair = cookie.partition(";")[0].encode()
    CLOSED.check_token(head((b"cookie", b"a=b; " + pair + b"; c")))
    other = WebUiGuard(Secret("let me in"), False, 9)
    for wrong in (
        head(),
        head((b"authorization", b"Bearer let me")),
        head((b"authorization", b"Basic let me in")),
        head((b"cookie", b"ebbflow_8321=let me in")),
        head((b"cookie", other.make_cookie("let me in", head()).partition(";")[0].encode())),
    ):
        with pytest.raises(Refusal) as raised:
            CLOSED.check_token(wrong)
        assert raised.value.status == 401


@pytest.mark.parametrize("token", ["", "let me", "let me in ", "ä"])
def test_a_wrong_token_gets_no_cookie(token):
    assert CLOSED.make_cookie(token, head()) is None
    assert OPEN.make_cookie(token, head()) is None


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
@pytest.mark.parametrize(
    ("secured", "headers", "is_secure"),
    [
        (True, [], True),
        (False, [(b"x-forwarded-proto", b"https")], True),
        (False, [(b"x-forwarded-proto", b"http")], False),
        (False, [], False),
    ],
)
def test_over_tls_the_cookie_is_sent_over_tls_only(secured, headers, is_secure):
    guard = WebUiGuard(Secret("let me in"), False, 8321, secured)
    assert guard.make_cookie("let me in", head(*headers)).endswith("; Secure") == is_secure


@pytest.mark.guarantee("guessing-is-slow")
def test_whoever_has_the_cookie_does_not_wait_for_guessers():
    guard = WebUiGuard(Secret("let me in"), False, 8321)
    cookie = guard.make_cookie("let me in", head()).partition(";")[0].encode()
    for n in range(10):
        assert guard.make_cookie(f"guess {n}", head()) is None
    with pytest.raises(Refusal) as raised:
        guard.make_cookie("let me in", head())
    assert raised.value.status == 429
    guard.check_token(head((b"cookie", cookie)))
