"""One Kafka broker in a folder of its own, on free ports of this machine.

It listens without and with protection: TLS with a login by PLAIN or SCRAM. Whatever starts it
also stops it; its data survives a ``kill`` and another ``start``.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import subprocess
import time
import uuid
from functools import cached_property
from pathlib import Path
from typing import Any

import trustme
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.connectors.kafka.jars import jars, java, pkcs8
from tests.waiting import until

USER, PASSWORD = "alice", "wonderland-7"
_START_WITHIN = 120
_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_LOG_LEVEL = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


class Broker:
    """A broker and what tests need of it. ``address`` is open to all, ``protected`` is not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._classpath = f"{jars()}/*"
        self._process: subprocess.Popen[bytes] | None = None
        self._members: list[Consumer] = []
        ports = free_ports(3)
        self.address, self.protected, self._controller = (f"127.0.0.1:{port}" for port in ports)
        self.ca = trustme.CA()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "server.properties").write_text(self._properties(), encoding="utf-8")
        self._format()

    def _properties(self) -> str:
        certificate = self.ca.issue_cert("127.0.0.1")
        chain = "".join(pem.bytes().decode() for pem in certificate.cert_chain_pems)
        key = certificate.private_key_pem.bytes().decode()
        jaas = "org.apache.kafka.common.security"
        plain = f'username="x" password="x" user_{USER}="{PASSWORD}"'
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.address},SASL_SSL://{self.protected},"
            f"CONTROLLER://{self._controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address},SASL_SSL://{self.protected}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,"
            "CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{jaas}.plain.PlainLoginModule "
            f"required {plain};",
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{jaas}.scram."
            "ScramLoginModule required;",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{jaas}.scram."
            "ScramLoginModule required;",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": chain.replace("\n", "\\n"),
            "ssl.keystore.key": pkcs8(key).replace("\n", "\\n"),
            "log.dirs": self._folder / "data",
            # Otherwise a record with an old timestamp is deleted half a minute after the start.
            "log.retention.ms": -1,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 500,
            "auto.create.topics.enable": "false",
            # So that a killed broker is detected soon, and may rejoin.
            "broker.session.timeout.ms": 2_000,
            "broker.heartbeat.interval.ms": 500,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def _format(self) -> None:
        cluster = base64.urlsafe_b64encode(b"ebbflow in tests").decode().rstrip("=")
        login = f"name={USER},password={PASSWORD}"
        users = [f"SCRAM-SHA-{size}=[{login}]" for size in (256, 512)]
        scram = [word for user in users for word in ("--add-scram", user)]
        process = self._run("kafka.tools.StorageTool", "format", "-t", cluster, *scram, "-c")
        if process.wait(_START_WITHIN):
            raise RuntimeError(f"Kafka's storage cannot be made: {self.log[-500:]}")

    def _run(self, *words: str) -> subprocess.Popen[bytes]:
        with open(self._folder / "log", "ab") as log:
            return subprocess.Popen(
                [java(), *_JVM, _LOG_LEVEL, "-cp", self._classpath, *words,
                 str(self._folder / "server.properties")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")

    def start(self) -> Broker:
        """Start it and wait until it answers."""
        self._process = self._run("kafka.Kafka")
        deadline = time.monotonic() + _START_WITHIN
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"Kafka did not start: {self.log[-500:]}")
        return self

    def _answers(self) -> bool:
        with contextlib.suppress(KafkaException):
            return bool(self.admin.list_topics(timeout=0.5).brokers)
        return False

    def stop(self) -> None:
        """Stop it, gracefully if it can."""
        for member in self._members:
            with contextlib.suppress(RuntimeError):  # it is closed already
                member.close()
        self._members.clear()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None

    def kill(self) -> None:
        """Kill it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    # --- what tests need ------------------------------------------------------------------------

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient(self.plain)

    @property
    def plain(self) -> dict[str, Any]:
        """Settings of a client that logs nothing while the broker is down."""
        return {"bootstrap.servers": self.address, "log_level": 0}

    def topic(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        """A new topic; underscores in the names of its settings are dots."""
        name = name or f"t-{uuid.uuid4().hex[:8]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(name, partitions, 1, config=settings)
        self.admin.create_topics([topic])[name].result(20)
        return name

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until the broker no longer knows it, which takes a while."""
        self.admin.delete_topics([topic])[topic].result(20)
        until(lambda: topic not in self.admin.list_topics(timeout=10).topics, 60, every=0.05)

    def fill(self, topic: str, values: Any, **fields: Any) -> None:
        """Write values, and wait until all are stored."""
        producer = Producer(self.plain)
        for value in values:
            while True:
                try:
                    producer.produce(topic, value, **fields)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0

    def records(self, topic: str) -> list[Any]:
        """Everything that is in the topic."""
        records: list[Any] = []
        with contextlib.closing(self.member(f"reader-{uuid.uuid4().hex}")) as reader:
            ends = self.ends(topic)
            reader.assign([TopicPartition(topic, p, 0) for p in ends])
            while len(records) < sum(ends.values()):
                records += reader.consume(1_000, 0.1)
        return records

    def member(self, group: str, **settings: Any) -> Consumer:
        """A consumer of another program. It is closed when the broker stops, at the latest."""
        made = Consumer(
            {
                **self.plain,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": "cooperative-sticky",
                **settings,
            }
        )
        # librdkafka may wait forever for a consumer that is collected before it is closed.
        self._members.append(made)
        return made

    def ends(self, topic: str) -> dict[int, int]:
        """The end of each partition."""
        with contextlib.closing(self.member("looking")) as reader:
            partitions = reader.list_topics(topic, timeout=10).topics[topic].partitions
            places = [TopicPartition(topic, number) for number in partitions]
            return {p.partition: reader.get_watermark_offsets(p, timeout=10)[1] for p in places}

    def lag(self, group: str, topic: str) -> dict[int, int]:
        """Returns how far the group's commits are behind the end of each partition."""
        ends = self.ends(topic)
        with contextlib.closing(self.member(group)) as reader:
            committed = reader.committed([TopicPartition(topic, p) for p in ends], timeout=10)
        return {p.partition: ends[p.partition] - max(0, p.offset) for p in committed}

    def members(self, group: str) -> list[str]:
        """Returns the members of the group."""
        description = self.admin.describe_consumer_groups([group])[group].result(20)
        return [member.member_id for member in description.members]


def free_ports(count: int) -> list[int]:
    """Ports that no program listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports
