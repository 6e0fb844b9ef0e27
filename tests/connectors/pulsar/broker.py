"""A standalone Pulsar in a folder of its own, on free ports of this machine.

It listens without and with TLS. Clients without a login are served; a wrong token is refused.
Whatever starts it also stops it; its data survives a ``kill`` and another ``start``.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import secrets
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pulsar
import trustme

from tests.connectors.kafka.jars import pkcs8
from tests.connectors.pulsar.distribution import distribution
from tests.ports import free_port

_START_WITHIN = 180
_ENVIRONMENT = {
    "PULSAR_MEM": "-Xms64m -Xmx320m -XX:MaxDirectMemorySize=256m",
    "PULSAR_GC": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "PULSAR_GC_LOG": "-Xlog:disable",
    "PULSAR_LOG_APPENDER": "Console",
    "PULSAR_LOG_LEVEL": "warn",
}


class PulsarBroker:
    """A broker and what tests need of it. ``address`` is open, ``protected`` speaks TLS."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = distribution()
        self._process: subprocess.Popen[bytes] | None = None
        self._was_killed = False
        plain, tls, web, self._bookie = (free_port() for _ in range(4))
        self.address = f"pulsar://127.0.0.1:{plain}"
        self.protected = f"pulsar+ssl://127.0.0.1:{tls}"
        self._web = web
        self._key = secrets.token_bytes(32)
        self.ca = trustme.CA()
        folder.mkdir(parents=True, exist_ok=True)
        self._write_files(plain, tls)

    def _write_files(self, plain: int, tls: int) -> None:
        certificate = self.ca.issue_cert("127.0.0.1")
        (self._folder / "token.key").write_bytes(self._key)
        self.ca.cert_pem.write_to_path(str(self._folder / "ca.pem"))
        key = pkcs8(certificate.private_key_pem.bytes().decode())
        (self._folder / "key.pem").write_text(key, encoding="utf-8")
        for pem in certificate.cert_chain_pems:
            pem.write_to_path(str(self._folder / "cert.pem"), append=True)
        settings = {
            "brokerServicePort": plain,
            "brokerServicePortTls": tls,
            "webServicePort": self._web,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "tlsCertificateFilePath": self._folder / "cert.pem",
            "tlsKeyFilePath": self._folder / "key.pem",
            "tlsTrustCertsFilePath": self._folder / "ca.pem",
            "authenticationEnabled": "true",
            "authenticationProviders": "org.apache.pulsar.broker.authentication."
            "AuthenticationProviderToken",
            "tokenSecretKey": f"file://{self._folder / 'token.key'}",
            "anonymousUserRole": "anonymous",
            # Otherwise a stop within a producer's batch delivers the whole batch again.
            "acknowledgmentAtBatchIndexLevelEnabled": "true",
            # Otherwise the broker deletes topics without clients after a while.
            "brokerDeleteInactiveTopicsEnabled": "false",
        }
        given = (self._home / "conf" / "standalone.conf").read_text(encoding="utf-8")
        kept = [line for line in given.splitlines() if line.partition("=")[0] not in settings]
        lines = [*kept, *(f"{name}={value}" for name, value in settings.items())]
        (self._folder / "standalone.conf").write_text("\n".join(lines), encoding="utf-8")

    def token(self, user: str) -> str:
        """A token that the broker accepts."""
        parts = [{"alg": "HS256"}, {"sub": user}]
        head = b".".join(_encode(json.dumps(part).encode()) for part in parts)
        return (head + b"." + _encode(hmac.digest(self._key, head, hashlib.sha256))).decode()

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")

    def start(self) -> PulsarBroker:
        """Start it and wait until it answers."""
        environment = {
            **os.environ,
            **_ENVIRONMENT,
            "PULSAR_STANDALONE_CONF": str(self._folder / "standalone.conf"),
            "PULSAR_LOG_DIR": str(self._folder / "logs"),
        }
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(self._home / "bin" / "pulsar"), "standalone", "-nss", "-nfw"),
                    *("--metadata-dir", str(self._folder / "metadata")),
                    *("--bookkeeper-dir", str(self._folder / "bookkeeper")),
                    *("--bookkeeper-port", str(self._bookie)),
                ],
                cwd=self._folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + _START_WITHIN
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"Pulsar did not start: {self.log[-500:]}")
            time.sleep(0.2)
        return self

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, RuntimeError):
            return self.ask("GET", "brokers/health") == "ok"
        return False

    def stop(self) -> None:
        """Stop it, gracefully if it can."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None
        with contextlib.suppress(KeyError):
            self.__dict__.pop("client").close()

    def kill(self) -> None:
        """Kill it."""
        assert self._process is not None
        self._was_killed = True
        self._process.kill()
        self._process.wait()

    def recover(self) -> None:
        """Start over with nothing if it was killed.

        A killed broker sometimes finds itself registered when it is back. Then it registers again
        and again, with half of a core, and at times it has no place to store a message.
        """
        if self._was_killed:
            self.stop()
            for name in ("metadata", "bookkeeper"):
                shutil.rmtree(self._folder / name, ignore_errors=True)
            self._was_killed = False
            self.start()

    # --- what tests need ------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What the administrative interface answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self._web, timeout=20)
        try:
            headers = {"Content-Type": "application/json"}
            data = None if body is None else json.dumps(body)
            connection.request(method, f"/admin/v2/{path}", data, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 300:
            raise RuntimeError(f"{answer.status}: {text[:300]}")
        return json.loads(text) if text[:1] in ("{", "[") else text

    @cached_property
    def client(self) -> pulsar.Client:
        return make_quiet_client(self.address)

    def topic(self, partitions: int = 0) -> str:
        """A new topic; with partitions, or a plain one."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        path = f"persistent/public/default/{name}"
        if partitions:
            self.ask("PUT", f"{path}/partitions", partitions)
        else:
            self.ask("PUT", path)
        return name

    def fill(self, topic: str, values: Iterable[bytes], keys: Iterator[str] | None = None) -> None:
        """Write values, and wait until all are stored."""
        with contextlib.closing(self.producer(topic)) as producer:
            for value in values:
                key = next(keys) if keys else None
                producer.send_async(value, lambda *_: None, partition_key=key)
            producer.flush()

    def producer(self, topic: str) -> pulsar.Producer:
        """A producer of another program, which sends batches."""
        return self.client.create_producer(
            topic,
            batching_enabled=True,
            batching_type=pulsar.BatchingType.KeyBased,
            block_if_queue_full=True,
        )

    def member(self, topic: str, subscription: str) -> pulsar.Consumer:
        """A consumer of another program that shares the subscription."""
        return self.client.subscribe(
            topic,
            subscription,
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )

    def messages(self, topic: str, at_least: int = 0) -> list[pulsar.Message]:
        """Everything that is in the topic; waits for at least that many."""
        found: list[pulsar.Message] = []
        with contextlib.closing(self.member(topic, f"reader-{uuid.uuid4().hex}")) as reader:
            deadline = time.monotonic() + 60
            while True:
                try:
                    found.append(reader.receive(2_000))
                    reader.acknowledge(found[-1])
                except pulsar.Timeout:
                    if len(found) >= at_least or time.monotonic() > deadline:
                        return found

    def subscription(self, topic: str, name: str) -> dict[str, Any]:
        """What the broker reports of a subscription, over all partitions of its topic."""
        path = f"persistent/public/default/{topic}"
        query = "getPreciseBacklog=true"
        try:
            found = self.ask("GET", f"{path}/stats?{query}")
        except RuntimeError:
            found = self.ask("GET", f"{path}/partitioned-stats?perPartition=false&{query}")
        stats: dict[str, Any] = found["subscriptions"].get(name, {})
        return stats

    def backlog(self, topic: str, name: str) -> int:
        """How many entries of the topic are not acknowledged."""
        return int(self.subscription(topic, name).get("msgBacklog", 0))


def make_quiet_client(address: str) -> pulsar.Client:
    """A client that prints nothing."""
    return pulsar.Client(address, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))


def _encode(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")
