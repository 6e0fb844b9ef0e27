"""Where a page listens, and the token beyond this machine."""

import socket

import pytest

from ebbflow.errors import SetupError
from ebbflow.ui.address import PageAddress, open_entrance, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (True, PageAddress("127.0.0.1", 8321, usual=True)),
        ("", PageAddress("127.0.0.1", 8321, usual=True)),
        ("9000", PageAddress("127.0.0.1", 9000)),
        (":9000", PageAddress("127.0.0.1", 9000)),
        ("0.0.0.0:9000", PageAddress("0.0.0.0", 9000)),
        ("0.0.0.0", PageAddress("0.0.0.0", 8321, usual=True)),
        ("[::1]:0", PageAddress("::1", 0)),
        ("[::1]", PageAddress("::1", 8321, usual=True)),
        ("my-host", PageAddress("my-host", 8321, usual=True)),
    ],
)
def test_an_address_is_a_host_a_port_or_both(text, address):
    assert parse_address(text, 8321) == address


@pytest.mark.parametrize("text", ["a:b", "host:99999", "::1", "a:1:2", "http://a:1"])
def test_what_is_no_address_is_told_with_an_example(text):
    with pytest.raises(SetupError) as raised:
        parse_address(text, 8321)
    assert str(raised.value) == (
        f"{text!r} is no address for a page to listen on. "
        "Write it as HOST:PORT, such as 127.0.0.1:8321; port 0 is any that is free."
    )


def test_the_usual_port_gives_way_and_one_that_was_named_does_not():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        entrance = open_entrance(PageAddress("127.0.0.1", port, usual=True))
        with entrance.bound:
            assert entrance.bound.getsockname()[1] != port
            assert entrance.way_in == entrance.url
        with pytest.raises(SetupError) as raised:
            open_entrance(PageAddress("127.0.0.1", port))
    assert str(raised.value) == (
        f"The page cannot listen on 127.0.0.1:{port}: Address already in use. "
        "Stop what listens there, or name another port; 0 is any that is free."
    )


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_beyond_this_machine_a_token_is_needed(monkeypatch):
    with pytest.raises(SetupError) as raised:
        open_entrance(PageAddress("0.0.0.0", 0))
    assert str(raised.value) == (
        "The page would show everything to anybody who can reach 0.0.0.0. "
        "Choose a token and set EBBFLOW_UI_TOKEN to it, or have the page listen on 127.0.0.1."
    )
    monkeypatch.setenv("EBBFLOW_UI_TOKEN", "chosen")
    entrance = open_entrance(PageAddress("0.0.0.0", 0))
    with entrance.bound:
        assert entrance.token.reveal() == "chosen"
        assert "chosen" not in entrance.way_in + entrance.url + repr(entrance)


def test_at_a_terminal_a_token_is_made_up_and_shown_once(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    entrance = open_entrance(PageAddress("0.0.0.0", 0))
    with entrance.bound:
        assert entrance.way_in == f"{entrance.url}?token={entrance.token.reveal()}"
        assert f"http://{socket.gethostname()}:" in entrance.url
        assert len(entrance.token.reveal()) >= 32
