"""Where a page listens, and the token beyond this machine."""

import io
import socket

import pytest

from ebbflow.domain.errors import SetupError
from ebbflow.ui.server import UiAddress, open_socket, parse_address
from ebbflow.web.server import make_certificate


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (True, UiAddress("127.0.0.1", 8321, usual=True)),
        ("", UiAddress("127.0.0.1", 8321, usual=True)),
        ("9000", UiAddress("127.0.0.1", 9000)),
        ("https://9000", UiAddress("127.0.0.1", 9000, secured=True)),
        ("https://my-host", UiAddress("my-host", 8321, usual=True, secured=True)),
        ("http://[::1]:0", UiAddress("::1", 0, secured=False)),
        (":9000", UiAddress("127.0.0.1", 9000)),
        ("0.0.0.0:9000", UiAddress("0.0.0.0", 9000)),
        ("0.0.0.0", UiAddress("0.0.0.0", 8321, usual=True)),
        ("[::1]:0", UiAddress("::1", 0)),
        ("[::1]", UiAddress("::1", 8321, usual=True)),
        ("my-host", UiAddress("my-host", 8321, usual=True)),
    ],
)
def test_an_address_is_a_host_a_port_or_both(text, address):
    assert parse_address(text, 8321) == address


@pytest.mark.parametrize("text", ["a:b", "host:99999", "::1", "a:1:2", "ftp://a:1", "a/b:1"])
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
        entrance = open_socket(UiAddress("127.0.0.1", port, usual=True))
        with entrance.bound:
            assert entrance.bound.getsockname()[1] != port
        with pytest.raises(SetupError) as raised:
            open_socket(UiAddress("127.0.0.1", port))
    assert str(raised.value) == (
        f"The page cannot listen on 127.0.0.1:{port}: Address already in use. "
        "Stop what listens there, or name another port; 0 is any that is free."
    )


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_beyond_this_machine_a_token_is_needed(monkeypatch):
    with pytest.raises(SetupError) as raised:
        open_socket(UiAddress("0.0.0.0", 0))
    assert str(raised.value) == (
        "The page would show everything to anybody who can reach 0.0.0.0. "
        "Choose a token and set EBBFLOW_UI_TOKEN to it, or have the page listen on 127.0.0.1."
    )
    monkeypatch.setenv("EBBFLOW_UI_TOKEN", "chosen")
    entrance = open_socket(UiAddress("0.0.0.0", 0))
    with entrance.bound:
        assert entrance.token.reveal() == "chosen"
        assert announced(entrance) == [
            f"page at {entrance.url}",
            "it is reached without TLS: its token and what it shows can be read on their way",
        ]
        assert "chosen" not in entrance.url + repr(entrance)


def announced(entrance):
    lines = []
    entrance.announce(lines.append, "page at")
    return lines


class Stream(io.StringIO):
    def __init__(self, is_terminal):
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.mark.guarantee("secrets-are-in-no-text")
@pytest.mark.parametrize("terminal", ["stdout", "stderr"])
def test_a_token_that_was_made_up_is_written_to_a_terminal_and_nowhere_else(monkeypatch, terminal):
    streams = {name: Stream(name == terminal) for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(f"sys.{name}", stream)
    entrance = open_socket(UiAddress("0.0.0.0", 0))
    with entrance.bound:
        lines = announced(entrance)
        token = entrance.token.reveal()
        assert len(token) >= 32
        assert f"http://{socket.gethostname()}:" in entrance.url
        assert token not in repr(entrance) + "".join(lines)
        assert streams.pop(terminal).getvalue() == f"Open {entrance.url}?token={token}\n"
        assert [stream.getvalue() for stream in streams.values()] == [""]


@pytest.fixture
def certificate(tmp_path, monkeypatch):
    made = make_certificate("127.0.0.1")
    texts = {"CERT": made.chain, "KEY": made.key.reveal()}
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setenv(f"EBBFLOW_UI_{name}_FILE", str(path))
    return made.chain


@pytest.mark.parametrize(("secured", "scheme"), [(None, "https"), (True, "https"), (False, "http")])
def test_with_a_certificate_the_page_speaks_tls_unless_told_otherwise(certificate, secured, scheme):
    entrance = open_socket(UiAddress("127.0.0.1", 0, secured=secured))
    with entrance.bound:
        assert entrance.url.startswith(f"{scheme}://127.0.0.1:")


def test_a_certificate_that_cannot_be_read_is_named_without_its_content(certificate, monkeypatch):
    monkeypatch.delenv("EBBFLOW_UI_KEY_FILE")
    with pytest.raises(SetupError) as raised:
        open_socket(UiAddress("127.0.0.1", 0))
    assert str(raised.value) == (
        "The page cannot read the file that EBBFLOW_UI_KEY_FILE names: it is not set. "
        "Set EBBFLOW_UI_CERT_FILE and EBBFLOW_UI_KEY_FILE to a certificate and its key, in PEM "
        "form."
    )
