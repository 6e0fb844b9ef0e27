"""Which requests a web server accepts: by host name, site and token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.domain.secrets import Secret
from ebbflow.web.exchange import HttpRequest, Refusal
from ebbflow.web.guard import (
    MOST_GUESSES,
    Guesses,
    SiteGuard,
    TokenGuard,
    WebUiGuard,
    is_local_name,
)

LOCAL = SiteGuard({"127.0.0.1", "my-host"}, "advice", "rename", ["https://app.example"])


def head(method: bytes = b"POST", client: str = "10.0.0.1", **headers: str) -> HttpRequest:
    pairs = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return HttpRequest(method, b"/vertices/in", pairs, client)


def status_of(guard: SiteGuard, **headers: str) -> int:
    try:
        guard.check(head(**headers))
    except Refusal as refusal:
        return refusal.status
    return 200


# --- sites --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"LOCALHOST:1",
        b"127.0.0.1:8321",
        b"127.9.9.9",
        b"[::1]:80",
        b"a.localhost",
        b"my-host",
        b"My-Host:8080",
    ],
)
def test_a_server_accepts_names_of_this_machine_and_of_the_host_it_listens_on(host):
    assert is_local_name(host) or b"host" in host.lower()
    assert status_of(LOCAL, host=host.decode()) == 200


@pytest.mark.guarantee("foreign-pages-send-nothing")
@pytest.mark.parametrize(
    "host", [b"", b"evil.com", b"evil.com:8321", b"localhost.evil.com", b"127.0.0.1.evil.com",
             b"10.0.0.1", b"[::2]:80", b"\xff", b"[", b"localhost@evil.com", b"evil.com#localhost"]
)  # fmt: skip
def test_a_foreign_host_name_is_refused(host):
    assert not is_local_name(host)
    with pytest.raises(Refusal) as raised:
        LOCAL.check(HttpRequest(b"POST", b"/", [(b"host", host)]))
    assert (raised.value.status, raised.value.reason) == (
        403,
        "this server answers to names of this machine only; rename",
    )


@pytest.mark.guarantee("foreign-pages-send-nothing")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost:80"}, 200),
        ({"origin": "https://localhost:80", "sec_fetch_site": "same-origin"}, 200),
        ({"origin": "https://app.example", "sec_fetch_site": "cross-site"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:81"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "none"}, 200),
        ({"origin": "https://proxy.example", "sec_fetch_site": "same-origin"}, 200),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 403),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "method": b"GET"}, 200),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "method": b"GET"}, 403),
    ],
)
def test_only_pages_of_this_server_and_of_named_origins_may_send_requests(headers, status):
    assert status_of(LOCAL, host="localhost:80", **headers) == status


def test_a_request_without_a_host_is_accepted_unless_its_origin_is_foreign():
    assert status_of(LOCAL) == 200
    assert status_of(LOCAL, origin="https://evil.example") == 403


def test_a_server_that_allows_every_origin_refuses_none():
    public = SiteGuard({"127.0.0.1"}, "", "", ["*"])
    assert status_of(public, host="any.example", origin="https://evil.example") == 200


# --- tokens -------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def guard(clock):
    return TokenGuard(Secret("right"), clock)


def answer(guard: TokenGuard, token: str, client: str = "10.0.0.1") -> int:
    try:
        guard.check_token(head(client=client, authorization=f"Bearer {token}"))
    except Refusal as refusal:
        return refusal.status
    return 200


@pytest.mark.guarantee("guessing-is-slow")
def test_an_address_that_guesses_tokens_must_wait_and_others_do_not(guard, clock):
    guesses = [answer(guard, f"guess {n}") for n in range(1_000)]

    assert guesses == [401] * MOST_GUESSES + [429] * (1_000 - MOST_GUESSES)
    assert answer(guard, "right") == 429
    assert answer(guard, "right", "10.0.0.2") == 200
    with pytest.raises(Refusal) as raised:
        guard.check_token(head(authorization="Bearer another"))
    assert raised.value.headers == {"retry-after": "60"}
    clock.now += 60
    assert answer(guard, "right") == 200
    assert [answer(guard, f"more {n}") for n in range(11)] == [401] * MOST_GUESSES + [429]


@pytest.mark.guarantee("guessing-is-slow")
def test_a_program_that_repeats_a_wrong_token_locks_no_client_out(guard):
    assert {answer(guard, "stale") for _ in range(1_000)} == {401}
    assert {answer(guard, "") for _ in range(1_000)} == {401}
    assert answer(guard, "right") == 200


def test_addresses_of_one_ipv6_network_count_as_one_guesser(guard):
    guesses = [answer(guard, f"guess {n}", f"2001:db8::{n:x}") for n in range(100)]

    assert guesses.count(401) == MOST_GUESSES
    assert answer(guard, "right", "2001:db8:0:1::1") == 200


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.integers(0, 40)), max_size=300))
def test_no_address_gets_more_than_its_guesses_in_a_minute(requests):
    clock = Clock()
    guard = TokenGuard(Secret("right"), clock)
    checked: dict[int, dict[int, float]] = {}
    for token, client, pause in requests:
        clock.now += pause
        recent = checked.setdefault(client, {})
        for old in [old for old, at in recent.items() if at + 60 <= clock.now]:
            del recent[old]
        if answer(guard, str(token), f"10.0.0.{client}") == 401:
            recent.setdefault(token, clock.now)
        assert len(recent) <= MOST_GUESSES


def test_the_memory_for_guesses_is_bounded(clock):
    guesses = Guesses(clock)
    for n in range(5_000):
        guesses.add(b"%d" % n, f"10.0.{n // 256}.{n % 256}")
        guesses.add(b"%d" % n, "10.1.0.0")

    assert len(guesses._wrong) <= 1_000


# --- the web UI ---------------------------------------------------------------------------------

LOCAL_HOST = (b"host", b"localhost:8321")
OPEN = WebUiGuard(None, True, 8321)
CLOSED = WebUiGuard(Secret("let me in"), False, 8321)


def ui_request(*headers: tuple[bytes, bytes], method: bytes = b"GET") -> HttpRequest:
    return HttpRequest(method, b"/api/pipelines", [*headers])


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_a_local_web_ui_refuses_foreign_names_and_a_public_one_relies_on_its_token():
    foreign = (b"host", b"evil.com:8321")
    with pytest.raises(Refusal) as raised:
        OPEN.check_site(ui_request(foreign))
    assert raised.value.reason == (
        "this server answers to names of this machine only; open it as localhost, or have it "
        "listen beyond this machine"
    )
    CLOSED.check_site(ui_request(foreign))


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_a_page_of_another_site_may_link_to_the_web_ui_and_nothing_else():
    site = (b"sec-fetch-site", b"cross-site")
    OPEN.check_site(ui_request(LOCAL_HOST, site, (b"sec-fetch-mode", b"navigate")))
    with pytest.raises(Refusal):
        OPEN.check_site(ui_request(LOCAL_HOST, site, (b"sec-fetch-mode", b"no-cors")))
    with pytest.raises(Refusal):
        OPEN.check_site(
            ui_request(
                LOCAL_HOST,
                site,
                (b"sec-fetch-mode", b"navigate"),
                (b"x-ebbflow", b"1"),
                method=b"POST",
            )
        )


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_a_change_requires_a_header_that_forms_cannot_send():
    OPEN.check_mark(ui_request(LOCAL_HOST, (b"x-ebbflow", b"1"), method=b"POST"))
    with pytest.raises(Refusal) as raised:
        OPEN.check_mark(ui_request(LOCAL_HOST, (b"content-type", b"text/plain"), method=b"POST"))
    assert (raised.value.status, raised.value.next_step) == (403, "Send it: X-Ebbflow: 1")


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_the_token_is_accepted_as_a_bearer_token_or_a_cookie():
    OPEN.check_token(ui_request())
    CLOSED.check_token(ui_request((b"authorization", b"Bearer let me in")))
    cookie = CLOSED.make_cookie("let me in", ui_request())
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert "let me in" not in cookie
    pair = cookie.partition(";")[0].encode()
    CLOSED.check_token(ui_request((b"cookie", b"a=b; " + pair + b"; c")))
    other = WebUiGuard(Secret("let me in"), False, 9)
    for wrong in (
        ui_request(),
        ui_request((b"authorization", b"Bearer let me")),
        ui_request((b"authorization", b"Basic let me in")),
        ui_request((b"cookie", b"ebbflow_8321=let me in")),
        ui_request(
            (b"cookie", other.make_cookie("let me in", ui_request()).partition(";")[0].encode())
        ),
    ):
        with pytest.raises(Refusal) as raised:
            CLOSED.check_token(wrong)
        assert raised.value.status == 401


@pytest.mark.parametrize("token", ["", "let me", "let me in ", "ä"])
def test_a_wrong_token_gets_no_cookie(token):
    assert CLOSED.make_cookie(token, ui_request()) is None
    assert OPEN.make_cookie(token, ui_request()) is None


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
def test_a_cookie_set_over_tls_is_sent_over_tls_only(secured, headers, is_secure):
    guard = WebUiGuard(Secret("let me in"), False, 8321, secured)
    assert guard.make_cookie("let me in", ui_request(*headers)).endswith("; Secure") == is_secure


@pytest.mark.guarantee("guessing-is-slow")
def test_a_client_with_the_cookie_is_not_delayed_by_guessers():
    guard = WebUiGuard(Secret("let me in"), False, 8321)
    cookie = guard.make_cookie("let me in", ui_request()).partition(";")[0].encode()
    for n in range(10):
        assert guard.make_cookie(f"guess {n}", ui_request()) is None
    with pytest.raises(Refusal) as raised:
        guard.make_cookie("let me in", ui_request())
    assert raised.value.status == 429
    guard.check_token(ui_request((b"cookie", cookie)))
