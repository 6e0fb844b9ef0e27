"""TLS and every kind of login against real servers, and the errors when they fail."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nkeys
import pytest

from ebbflow.domain.errors import SetupError
from ebbflow.nats import api
from ebbflow.nats.link import connect
from ebbflow.nats.locate import open_link
from ebbflow.nats.login import Addresses
from ebbflow.publishing import Login, Publisher
from ebbflow.streams import provision
from tests.nats.securing import Authority, Nkey, Operator, nats_server

SECRET = "s3cr3t"
USERS = f'authorization {{ users: [ {{ user: "me", password: "{SECRET}" }} ] }}\n'


def can_log_in(port: int, login: Login | None = None, host: str = "tls://localhost") -> bool:
    """Whether JetStream carries out requests, over a link and for a publisher."""
    url = f"{host}:{port}"
    with open_link(Addresses.of(url, login)) as link:
        link.run(provision.ensure(link.client, {"name": "s", "subjects": ["s"]}))
        with Publisher(url, login=login) as publisher:
            publisher.publish("s", b"")
        return link.run(api.read_state(link.client, "s")).messages > 0


@contextmanager
def refused(expected: str) -> Iterator[None]:
    """The block fails soon with this text, in which ``…`` stands for text of the libraries."""
    began = time.monotonic()
    with pytest.raises(SetupError) as error:
        yield
    assert time.monotonic() - began < 10
    text = str(error.value)
    assert re.fullmatch(re.escape(expected).replace("…", ".+"), text), text
    assert SECRET not in text


@contextmanager
def login_refused(place: str, kind: str) -> Iterator[None]:
    """The end of the connection may overtake the reason for it."""
    with pytest.raises(SetupError) as error:
        yield
    why = "(refused the login: Authorization Violation|ended the connection: .+)"
    expected = rf"{re.escape(place)} {why}\. It was given {kind}: check that\."
    assert re.fullmatch(expected, str(error.value)), str(error.value)
    assert SECRET not in str(error.value)


def at(port: int, host: str = "tls://localhost") -> str:
    return f"NATS at {host}:{port}"


# --- TLS ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server with TLS and a password, known as localhost."""
    folder = tmp_path_factory.mktemp("secure")
    with nats_server(folder, authority.tls_block(folder, "localhost") + USERS) as port:
        yield port


def test_tls_works_with_a_private_certificate_authority(secure, authority):
    login = Login(user="me", password=SECRET, ca=authority.pem)
    assert can_log_in(secure, login)
    assert can_log_in(secure, login, "nats://localhost")
    assert can_log_in(secure, Login(ca=authority.pem), f"tls://me:{SECRET}@localhost")


@pytest.mark.parametrize("host", ["tls://localhost", "nats://localhost"])
def test_an_unknown_certificate_authority_is_not_trusted(secure, host):
    step = "Name the certificate of its authority with EBBFLOW_NATS_CA_FILE."
    expected = f"{at(secure, host)} has a certificate that is not trusted: …. {step}"
    with refused(expected):
        can_log_in(secure, Login(user="me", password=SECRET), host)
    with refused(expected):
        can_log_in(secure, Login(user="me", password=SECRET, ca=Authority().pem), host)


def test_a_certificate_for_another_host_is_rejected_unless_that_host_is_configured(
    secure, authority
):
    login = Login(user="me", password=SECRET, ca=authority.pem)
    with refused(
        f"{at(secure, 'tls://127.0.0.1')} has a certificate for another host: …'127.0.0.1'. "
        "Use a name that is in it, or set EBBFLOW_NATS_TLS_HOSTNAME to one."
    ):
        can_log_in(secure, login, "tls://127.0.0.1")
    renamed = Login(user="me", password=SECRET, ca=authority.pem, tls_hostname="localhost")
    assert can_log_in(secure, renamed, "tls://127.0.0.1")


def test_a_wrong_password_is_also_reported_over_tls(secure, authority):
    with login_refused(at(secure), "a user and password"):
        can_log_in(secure, Login(user="me", password="wrong", ca=authority.pem))


def test_an_expired_certificate_is_rejected(authority, tmp_path):
    tls = authority.tls_block(tmp_path, "localhost", days=-1)
    with (
        nats_server(tmp_path, tls) as port,
        refused(f"{at(port)} has a certificate that has expired. Renew it."),
    ):
        can_log_in(port, Login(ca=authority.pem))


def test_a_server_may_require_a_client_certificate(authority, tmp_path):
    tls = authority.tls_block(tmp_path, "localhost", more="verify: true")
    with nats_server(tmp_path, tls) as port:
        ca, own, strange = authority.pem, authority.issue("me"), Authority().issue("me")
        assert can_log_in(port, Login(ca=ca, cert=own.cert, key=own.key))
        with refused(
            f"{at(port)} wants a certificate of the client. Name one with "
            "EBBFLOW_NATS_CERT_FILE and its key with EBBFLOW_NATS_KEY_FILE."
        ):
            can_log_in(port, Login(ca=ca))
        # The end of the connection may overtake the reason for it.
        with pytest.raises(SetupError) as caught:
            can_log_in(port, Login(ca=ca, cert=strange.cert, key=strange.key))
        assert re.fullmatch(
            f"{at(port)} (refused the certificate of the client: .*unknown ca. "
            "Use one that it trusts|ended the connection: .*It was given a certificate: "
            r"check that)\.",
            str(caught.value),
        )


@pytest.mark.guarantee("secrets-are-in-no-text")
def test_no_login_is_sent_to_a_server_that_claims_to_have_no_tls():
    """As an attacker in between would claim."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b'INFO {"version":"2.15.1","max_payload":1048576}\r\n')
                    connection.settimeout(5)
                    received.append(connection.recv(1000))

        threading.Thread(target=serve, daemon=True).start()
        host = "tls://127.0.0.1"
        with refused(
            f"{at(port, host)} does not use TLS, which the URL or the login asks for. "
            "Switch it on there."
        ):
            can_log_in(port, Login(user="me", password=SECRET), host)
        listening.shutdown(socket.SHUT_RDWR)
    assert set(received) == {b""}


def test_tls_is_used_on_request_if_the_server_makes_it_optional(authority, tmp_path):
    config = authority.tls_block(tmp_path, "localhost") + "allow_non_tls: true\n"
    with nats_server(tmp_path, config) as port:
        assert can_log_in(port, host="nats://localhost")
        assert can_log_in(port, Login(ca=authority.pem))
        with refused(f"{at(port)} has a certificate that is not trusted: … Name …"):
            can_log_in(port)


# --- logins -------------------------------------------------------------------------------------


def test_a_token_works_in_the_url_and_next_to_it(tmp_path):
    with nats_server(tmp_path, f'authorization {{ token: "{SECRET}" }}') as port:
        plain = "nats://127.0.0.1"
        assert can_log_in(port, host=f"nats://{SECRET}@127.0.0.1")
        assert can_log_in(port, Login(token=SECRET), plain)
        with login_refused(at(port, plain), "a token"):
            can_log_in(port, Login(token="wrong"), plain)
        with refused(
            f"{at(port, plain)} wants a login: Authorization Violation. "
            "Give one, in the URL or with the variables EBBFLOW_NATS_…"
        ):
            can_log_in(port, None, plain)


def test_an_nkey_logs_in_without_its_seed_being_sent(tmp_path):
    key, other = Nkey(nkeys.PREFIX_BYTE_USER), Nkey(nkeys.PREFIX_BYTE_USER)
    config = f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}\ntrace: true\n"
    with nats_server(tmp_path, config) as port:
        assert can_log_in(port, Login(nkey=key.seed), "nats://127.0.0.1")
        with login_refused(at(port, "nats://127.0.0.1"), "an nkey"):
            can_log_in(port, Login(nkey=other.seed), "nats://127.0.0.1")
    log = (tmp_path / "nats.log").read_text()
    assert key.public in log
    assert key.seed not in log


def test_creds_log_in_to_an_operators_account(tmp_path):
    operator = Operator()
    with nats_server(tmp_path, operator.config) as port:
        assert can_log_in(port, Login(creds=operator.creds()), "nats://127.0.0.1")
        with login_refused(at(port, "nats://127.0.0.1"), "creds"):
            can_log_in(port, Login(creds=Operator().creds()), "nats://127.0.0.1")


def test_creds_with_too_many_permissions_for_the_server_are_reported(tmp_path):
    operator = Operator()
    allowed = {"allow": [f"orders.{number}" for number in range(500)]}
    login = Login(creds=operator.creds(pub=allowed))
    with nats_server(tmp_path, operator.config) as port, pytest.raises(SetupError) as caught:
        can_log_in(port, login, "nats://127.0.0.1")
    # The end of the connection may overtake the reason for it.
    assert re.fullmatch(
        f"{at(port, 'nats://127.0.0.1')} (does not accept a login as long as this one. Raise its "
        "max_control_line, or give the permissions to a signing key instead"
        r"|ended the connection: .+ It was given creds: check that)\.",
        str(caught.value),
    )


def test_a_connection_with_tls_and_creds_is_restored_after_a_restart(authority, tmp_path):
    operator = Operator()
    config = operator.config + authority.tls_block(tmp_path, "localhost")
    login = Login(creds=operator.creds(), ca=authority.pem)
    with nats_server(tmp_path, config) as port:
        publisher = Publisher(f"tls://localhost:{port}", login=login, ack_wait=30)
        publisher.__enter__()
        with open_link(publisher._inner.addresses) as link:
            link.run(provision.ensure(link.client, {"name": "s", "subjects": ["s"]}))
    try:
        with nats_server(tmp_path, config, port):
            assert publisher.publish("s", b"", retry_attempts=-1).seq == 1
    finally:
        publisher.__exit__(None, None, None)


def test_one_server_of_several_that_accepts_the_login_is_enough(authority, tmp_path):
    """Whatever is wrong with the others: no TLS, another password, not reachable."""
    login = Login(user="me", password=SECRET, ca=authority.pem)
    strict = USERS.replace(SECRET, "other")
    good, bad, bare = (Path(tmp_path, name) for name in ("good", "bad", "bare"))
    with (
        nats_server(bare, USERS) as no_tls,
        nats_server(bad, authority.tls_block(bad, "localhost") + strict) as wrong,
        nats_server(good, authority.tls_block(good, "localhost") + USERS) as right,
    ):
        for _ in range(4):  # the order is random
            urls = ",".join(f"tls://localhost:{port}" for port in (no_tls, 1, wrong, right))
            with open_link(Addresses.of(urls, login)) as link:
                assert link.client.connected_url.port == right


def test_closing_while_the_server_goes_down_raises_nothing(tmp_path):
    """Whichever step of reconnecting the client has reached."""

    async def close_after(steps: int, place: Addresses) -> None:
        client = await connect(place, "test")
        os.kill(int((tmp_path / str(steps) / "nats.pid").read_text()), signal.SIGKILL)
        while client.is_connected:
            await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        await client.close()

    for steps in range(6):
        with nats_server(tmp_path / str(steps), "") as port:
            asyncio.run(close_after(steps, Addresses.of(f"nats://127.0.0.1:{port}")))
