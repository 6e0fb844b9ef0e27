"""Logins before any server is contacted: their sources, what is rejected, what is shown."""

from __future__ import annotations

import copy
import os
import pickle
import re
import ssl
import tempfile
from dataclasses import fields, replace

import nkeys
import pytest

from ebbflow.domain.errors import SetupError
from ebbflow.nats.locate import find_own_server, open_link_for_run
from ebbflow.nats.login import VARIABLES, Addresses
from ebbflow.publishing import AsyncPublisher, Login, Publisher
from tests.nats.securing import Authority, Nkey, Operator

SECRET = "s3cr3t-that-nobody-sees"
URL = "nats://localhost:4222"
CERTIFICATE = "is not a certificate in PEM form"
PAIR = "cert and key: are not a certificate and its key, in PEM form"
CREDS = "creds is not a .creds file with a user's JWT and its seed"
SEED = "is not the seed of a user's nkey, which begins with SU"


@pytest.fixture(scope="module")
def seed() -> str:
    return Nkey(nkeys.PREFIX_BYTE_USER).seed


@pytest.fixture(scope="module")
def everything(authority: Authority, seed: str) -> dict[str, Login]:
    """One login of each kind."""
    own = authority.issue("client")
    return {
        "Login(user)": Login(user="me", password=SECRET),
        "Login(token)": Login(token=SECRET),
        "Login(nkey)": Login(nkey=seed),
        "Login(creds)": Login(creds=Operator().creds()),
        "Login(ca, cert, key)": Login(ca=authority.pem, cert=own.cert, key=own.key),
        "Login(tls_hostname)": Login(tls_hostname=SECRET),
        "Login()": Login(),
    }


@pytest.mark.guarantee("secrets-are-in-no-text")
def test_a_login_shows_only_the_names_of_its_fields(everything):
    for shown, login in everything.items():
        assert repr(login) == str(login) == f"{login}" == shown
        for place in (Addresses.of(URL, login), Publisher(URL, login=login)._inner.addresses):
            texts = [repr(place), str(place)]
            held = [value for f in fields(login) if (value := getattr(login, f.name))]
            assert not [value for value in held for text in texts if value in text]


def test_a_pickled_login_finds_the_same_connection_in_a_worker(everything):
    for login in everything.values():
        place = Addresses.of(URL, login)
        arrived = pickle.loads(pickle.dumps(place))
        assert arrived == place == copy.deepcopy(place)
        assert {place: "link"}[arrived] == "link"
        assert arrived.login.held == login.held


@pytest.mark.guarantee("secrets-are-in-no-text")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"user": "me"}, "user is given without password; give both of them"),
        ({"password": SECRET}, "password is given without user; give both of them"),
        ({"cert": SECRET}, "cert is given without key; give both of them"),
        ({"key": SECRET}, "key is given without cert; give both of them"),
        (
            {"user": "me", "password": SECRET, "token": SECRET},
            "user and token are two logins; give one of them",
        ),
        ({"token": SECRET, "creds": SECRET}, "token and creds are two logins; give one of them"),
        ({"nkey": SECRET, "creds": SECRET}, "nkey and creds are two logins; give one of them"),
        ({"nkey": SECRET}, f"nkey {SEED}"),
        ({"nkey": ""}, f"nkey {SEED}"),
        ({"nkey": "SU\N{SNOWMAN}"}, f"nkey {SEED}"),
        ({"creds": SECRET}, CREDS),
        ({"ca": SECRET}, f"ca {CERTIFICATE}"),
        ({"ca": ""}, f"ca {CERTIFICATE}"),
        ({"cert": SECRET, "key": SECRET}, PAIR),
        ({"token": SECRET.encode()}, "token must be text"),
    ],
)
def test_an_unusable_login_is_rejected_by_field_name_without_its_content(given, expected):
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$") as refused:
        Login(**given)
    assert SECRET not in str(refused.value)


def test_a_mistyped_seed_or_one_that_is_not_a_users_is_rejected(seed):
    other = "B" if seed[20] != "B" else "C"
    for wrong in (
        seed[:20] + other + seed[21:],
        seed[:-1],
        Nkey(nkeys.PREFIX_BYTE_ACCOUNT).seed,
        Nkey(nkeys.PREFIX_BYTE_USER).public,
    ):
        with pytest.raises(ValueError, match=f"nkey {SEED}") as refused:
            Login(nkey=wrong)
        assert wrong not in str(refused.value)
    assert Login(nkey=f"\n {seed}\r\n").nkey == seed


def test_creds_need_a_jwt_and_a_user_seed(seed):
    whole = Operator().creds()
    jwt, _, rest = whole.partition("------END NATS USER JWT------")
    for wrong in (jwt, rest, whole.replace("-----BEGIN USER", "-----BEGIN ACCOUNT")):
        with pytest.raises(ValueError, match=CREDS):
            Login(creds=wrong)
    damaged = re.sub("SU[A-Z0-9]{10}", "SUAAAAAAAAAA", whole)
    with pytest.raises(ValueError, match=f"creds has a seed that {SEED}"):
        Login(creds=damaged)
    untidy = f"# made by hand\r\n{whole}".replace("\n", "\r\n").rstrip()
    assert Login(creds=untidy) == Login(creds=whole)


def test_a_key_with_a_passphrase_is_rejected_without_a_prompt(authority):
    own = authority.issue("client")
    key = own.key.replace("PRIVATE KEY-----", "ENCRYPTED PRIVATE KEY-----", 1)
    expected = "cert and key: the key has a passphrase; give one without"
    with pytest.raises(ValueError, match=f"^{expected}$"):
        Login(cert=own.cert, key=key)


def test_a_certificate_is_accepted_only_with_its_own_key(authority):
    one, other = authority.issue("one"), authority.issue("other")
    with pytest.raises(ValueError, match=PAIR):
        Login(cert=one.cert, key=other.key)


def test_tls_checks_host_names_and_requires_at_least_version_1_2(authority):
    for login in (Login(), Login(ca=f"# Häßlich\n{authority.pem}\nmore")):
        context = login.make_tls_context()
        assert context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert len(Login(ca=authority.pem).make_tls_context().get_ca_certs()) == 1


def test_no_key_stays_behind_on_disk(authority, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = authority.issue("client")
    Login(cert=own.cert, key=own.key).make_tls_context()
    assert list(tmp_path.iterdir()) == []


# --- files and the environment ------------------------------------------------------------------


def test_files_are_read_once(tmp_path, authority):
    own = authority.issue("client")
    cert, key = own.write(tmp_path, "client")
    password = tmp_path / "password"
    password.write_text(f" {SECRET} \r\n")
    login = Login.from_files(user="me", password=password, cert=cert, key=str(key))
    for path in (cert, key, password):
        path.unlink()
    assert login == Login(user="me", password=f" {SECRET} ", cert=own.cert, key=own.key)
    with pytest.raises(TypeError, match="unknown file 'pasword'"):
        Login.from_files(pasword=password)


def test_the_environment_has_a_variable_for_each_login_field(tmp_path, authority, seed):
    own, creds = authority.issue("client"), Operator().creds()

    def file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    for environment, login in [
        ({}, Login()),
        ({"USER": "", "TOKEN_FILE": ""}, Login()),
        ({"USER": "me", "PASSWORD": SECRET}, Login(user="me", password=SECRET)),
        (
            {"USER": "me", "PASSWORD_FILE": file("p", SECRET + "\n")},
            Login(user="me", password=SECRET),
        ),
        ({"TOKEN": SECRET}, Login(token=SECRET)),
        ({"TOKEN_FILE": file("t", SECRET)}, Login(token=SECRET)),
        ({"NKEY_FILE": file("n", seed + "\n")}, Login(nkey=seed)),
        ({"CREDS_FILE": file("c", creds)}, Login(creds=creds)),
        (
            {
                "CA_FILE": file("ca", authority.pem),
                "CERT_FILE": file("cert", own.cert),
                "KEY_FILE": file("key", own.key),
                "TLS_HOSTNAME": "nats.example.com",
            },
            Login(ca=authority.pem, cert=own.cert, key=own.key, tls_hostname="nats.example.com"),
        ),
    ]:
        given = {f"EBBFLOW_NATS_{name}": value for name, value in environment.items()}
        assert given.keys() <= VARIABLES.keys()
        assert Login.from_environment(given) == login


STEP = "Set or unset the variables and try again."


@pytest.mark.guarantee("secrets-are-in-no-text")
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"USER": "me"},
            "EBBFLOW_NATS_USER is given without EBBFLOW_NATS_PASSWORD; give both of them.",
        ),
        (
            {"TOKEN": SECRET, "CREDS_FILE": "file"},
            "EBBFLOW_NATS_TOKEN and EBBFLOW_NATS_CREDS_FILE are two logins; give one of them.",
        ),
        (
            {"TOKEN": SECRET, "TOKEN_FILE": "file"},
            "EBBFLOW_NATS_TOKEN and EBBFLOW_NATS_TOKEN_FILE set the same value; set one of them.",
        ),
        (
            {"KEY_FILE": "file"},
            "EBBFLOW_NATS_KEY_FILE is given without EBBFLOW_NATS_CERT_FILE; give both of them.",
        ),
        ({"NKEY_FILE": "file"}, f"EBBFLOW_NATS_NKEY_FILE {SEED}."),
        ({"CA_FILE": "file"}, f"EBBFLOW_NATS_CA_FILE {CERTIFICATE}."),
        (
            {"CREDS_FILE": "file"},
            "EBBFLOW_NATS_CREDS_FILE is not a .creds file with a user's JWT and its seed.",
        ),
        (
            # A secret given in place of a path must stay secret too.
            {"TOKEN_FILE": SECRET},
            "EBBFLOW_NATS_TOKEN_FILE names a file that cannot be read: No such file or directory.",
        ),
        (
            {"CREDS_FILE": "binary"},
            "EBBFLOW_NATS_CREDS_FILE names a file that cannot be read: it is not text.",
        ),
        (
            {"CA_FILE": "/"},
            "EBBFLOW_NATS_CA_FILE names a file that cannot be read: Is a directory.",
        ),
        (
            {"USER": "me", "PASSWORD_FILE": "empty"},
            "EBBFLOW_NATS_PASSWORD_FILE names a file that is empty.",
        ),
    ],
)
def test_an_invalid_variable_is_named_without_its_content(environment, expected, tmp_path):
    (tmp_path / "file").write_text(SECRET)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_text("\n")
    given = {
        f"EBBFLOW_NATS_{name}": str(tmp_path / value) if (tmp_path / value).exists() else value
        for name, value in environment.items()
    }
    with pytest.raises(SetupError) as refused:
        Login.from_environment(given)
    assert str(refused.value) == f"{expected} {STEP}"
    assert refused.value.__cause__ is None
    assert SECRET not in str(refused.value)


# --- URLs next to a login -------------------------------------------------------------------------


def test_a_login_in_the_url_can_be_combined_with_certificates(authority):
    certs = Login(ca=authority.pem)
    assert Addresses.of("tls://me:s@host", certs).login == replace(certs, user="me", password="s")
    assert Addresses.of("token@host", certs).login == replace(certs, token="token")


@pytest.mark.parametrize("kind", [Publisher, AsyncPublisher])
def test_two_logins_are_rejected(kind):
    expected = "the URL has a login and there is another one; leave one of them out"
    with pytest.raises(ValueError, match=f"^{expected}$"):
        kind("nats://me:secret@host", login=Login(token=SECRET))


def test_the_login_from_the_environment_is_only_for_the_users_own_server(monkeypatch, tmp_path):
    monkeypatch.setenv("EBBFLOW_NATS_TOKEN", SECRET)
    assert find_own_server("nats://host").login == Login(token=SECRET)
    assert find_own_server("nats://host", Login(token="other")).login == Login(token="other")
    with open_link_for_run(tmp_path, None) as link:
        assert link.server.login.user == "ebbflow"
    with pytest.raises(SetupError) as refused:
        find_own_server(f"nats://me:{SECRET}@host")
    assert str(refused.value) == (
        "There are two logins for NATS: one in its URL, and next to it a token. "
        "Take it out of --nats or EBBFLOW_NATS_URL, or leave the other one out."
    )


def test_a_login_without_a_server_is_rejected(tmp_path):
    expected = "There is a login for NATS, but no server to log in to. Name its URL."
    with (
        pytest.raises(SetupError, match=f"^{expected}$"),
        open_link_for_run(tmp_path, None, login=Login(token=SECRET)),
    ):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("url", "login", "wanted"),
    [
        ("nats://host", Login(), False),
        ("nats://me:secret@host", None, False),
        ("tls://host", None, True),
        ("nats://one,tls://two", None, True),
        ("nats://host", Login(tls_hostname="other"), True),
    ],
)
def test_the_url_or_the_login_can_require_tls(url, login, wanted):
    assert Addresses.of(url, login).wants_tls is wanted


def test_an_inbox_prefix_must_be_names_joined_by_dots():
    assert Publisher(URL, inbox_prefix="_INBOX_me.x")._inner.addresses.inbox == "_INBOX_me.x"
    for wrong in ("", "a.", "a b", "a.>", "*", None):
        with pytest.raises(ValueError, match="inbox_prefix must be names joined by dots"):
            Publisher(URL, inbox_prefix=wrong)
