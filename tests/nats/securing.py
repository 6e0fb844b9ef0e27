"""NATS servers that require a login, with or without TLS, and the keys and certificates for it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nkeys
import trustme

from ebbflow.nats.embedded import find_binary
from ebbflow.nats.login import Addresses
from tests.waiting import until


def address(server: Addresses) -> str:
    """The URL of a server, with its login."""
    login = server.login
    return str(server).replace("://", f"://{login.user}:{login.password}@")


@contextlib.contextmanager
def nats_server(folder: Path, config: str, port: int = 0) -> Iterator[int]:
    """A server with JetStream and this configuration, on the loopback interface only."""
    port = port or _pick_port()
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"log_file": folder / "nats.log", "pid_file": folder / "nats.pid"}
    lines = [f"{name}: {json.dumps(str(path))}\n" for name, path in paths.items()]
    store = f"jetstream {{ store_dir: {json.dumps(str(folder / 'store'))} }}\n"
    (folder / "head").write_text("".join([f'listen: "127.0.0.1:{port}"\n', *lines, store]))
    process = subprocess.Popen(
        [find_binary(), "-c", str(_write_config(folder, config))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        _wait_for(process, port)
        yield port
    finally:
        process.terminate()
        process.communicate(timeout=300)


def _write_config(folder: Path, config: str) -> Path:
    file = folder / "nats.conf"
    file.write_text((folder / "head").read_text() + config)
    return file


def reload(folder: Path, config: str) -> None:
    """Have the server in the folder continue with another configuration."""
    log = folder / "nats.log"
    times = log.read_text().count("Reloaded server configuration")
    _write_config(folder, config)
    os.kill(int((folder / "nats.pid").read_text()), signal.SIGHUP)
    until(lambda: log.read_text().count("Reloaded server configuration") > times)


def _pick_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as one:
            return one.recv(4) == b"INFO"
        return False

    until(answers, 240, process, lambda: process.communicate()[0].decode(), every=0.02)


# --- certificates -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pem:
    """A certificate and its key, as text."""

    cert: str
    key: str

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        folder.mkdir(parents=True, exist_ok=True)
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        cert.write_text(self.cert)
        key.write_text(self.key)
        return cert, key


class Authority:
    """A certificate authority of the tests' own."""

    def __init__(self) -> None:
        self._ca = trustme.CA()
        self.pem = self._ca.cert_pem.bytes().decode()

    def issue(self, *names: str, days: float = 1) -> Pem:
        now = datetime.now(UTC)
        leaf = self._ca.issue_cert(
            *names, not_before=now - timedelta(days=3), not_after=now + timedelta(days=days)
        )
        chain = "".join(blob.bytes().decode() for blob in leaf.cert_chain_pems)
        return Pem(chain, leaf.private_key_pem.bytes().decode())

    def tls_block(self, folder: Path, *names: str, days: float = 1, more: str = "") -> str:
        """The part of a server's configuration that has it use TLS under these names."""
        cert, key = self.issue(*names, days=days).write(folder, "server")
        (folder / "ca.pem").write_text(self.pem)
        paths = {"cert_file": cert, "key_file": key, "ca_file": folder / "ca.pem"}
        lines = "\n".join(f"  {name}: {json.dumps(str(path))}" for name, path in paths.items())
        return f"tls {{\n{lines}\n  {more}\n}}\n"


# --- nkeys and JWTs -----------------------------------------------------------------------------


class Nkey:
    """A NATS key pair: of an operator, an account or a user."""

    def __init__(self, prefix: int) -> None:
        self.seed = nkeys.encode_seed(secrets.token_bytes(32), prefix).decode()
        pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self._pair = pair
        self.public = pair.public_key.decode()

    def jwt(self, subject: str, name: str, nats: Mapping[str, Any]) -> str:
        """A JWT about the subject, signed with this key."""
        claims = {"iat": int(time.time()), "iss": self.public, "name": name, "sub": subject}
        claims["nats"] = {"version": 2, **nats}
        digest = hashlib.new("sha512_256", _json(claims)).digest()
        claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
        text = f"{_b64(_json({'typ': 'JWT', 'alg': 'ed25519-nkey'}))}.{_b64(_json(claims))}"
        return f"{text}.{_b64(self._pair.sign(text.encode()))}"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Operator:
    """An operator with a system account and one account that has JetStream."""

    def __init__(self) -> None:
        self._key = Nkey(nkeys.PREFIX_BYTE_OPERATOR)
        self._system = Nkey(nkeys.PREFIX_BYTE_ACCOUNT)
        self._account = Nkey(nkeys.PREFIX_BYTE_ACCOUNT)

    @property
    def config(self) -> str:
        """The part of a server's configuration that has it trust this operator."""
        operator = self._key.jwt(self._key.public, "tests", {"type": "operator"})
        storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
        system, account = self._about(self._system, {}), self._about(self._account, storage)
        return (
            f"operator: {operator}\nsystem_account: {self._system.public}\nresolver: MEMORY\n"
            f"resolver_preload: {{\n  {self._system.public}: {system}\n"
            f"  {self._account.public}: {account}\n}}\n"
        )

    def _about(self, account: Nkey, storage: Mapping[str, int]) -> str:
        counted = ("subs", "conn", "leaf", "imports", "exports", "data", "payload")
        limits = {**dict.fromkeys(counted, -1), "wildcards": True, **storage}
        return self._key.jwt(account.public, "account", {"type": "account", "limits": limits})

    def creds(self, name: str = "me", **permissions: Any) -> str:
        """What is in the .creds file of a user of that account."""
        user = Nkey(nkeys.PREFIX_BYTE_USER)
        claims = {"type": "user", "subs": -1, "data": -1, "payload": -1, **permissions}
        jwt = self._account.jwt(user.public, name, claims)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )
