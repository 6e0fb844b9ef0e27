"""The user's own NATS server: single messages in one stream, results in another.

Every run has a separate server with an empty store, from the same binary as Ebbflow's. Ebbflow
keeps what it needs for itself on its own server next to it, as ``ebbflow run`` does by default.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from benchmarks.broker import Broker
from benchmarks.wire import Wire
from benchmarks.work import numbered
from ebbflow.nats import api
from ebbflow.nats.embedded import find_binary
from ebbflow.nats.locate import open_link
from ebbflow.nats.login import Addresses

IN, OUT = "user_in", "user_out"
IN_SUBJECT, OUT_SUBJECT = "user.in", "user.out"


class NotOnce(Exception):
    """A contestant has lost, doubled or changed messages, so its rate means nothing."""


@dataclass(frozen=True)
class Outside(Broker):
    """The server, with a stream to read and one to fill. ``process`` is for its use of CPU."""

    process: psutil.Process

    @property
    def url(self) -> str:
        """The address of the server."""
        return self.link.server.urls[0]

    def lay_out(self) -> None:
        """Makes both streams, without messages."""
        shared = {"storage": "file", "num_replicas": 1, "retention": "limits"}
        self.fresh(
            {"name": IN, "subjects": [IN_SUBJECT], **shared},
            {"name": OUT, "subjects": [OUT_SUBJECT], **shared},
        )

    def load(self, messages: int, size: int) -> None:
        """Makes both streams, and stores that many numbered texts in the first, each by itself."""
        self.lay_out()
        wire = Wire(self.link.server)
        wire.store(IN_SUBJECT, numbered(messages, size, self.seed))
        wire.close()

    def acked(self, consumer: str) -> int:
        """Returns how many messages of the first stream a consumer has acknowledged."""
        try:
            facts = self.link.run(api.call(self.link.client, f"CONSUMER.INFO.{IN}.{consumer}"))
        except api.ApiError:
            return 0
        delivered: int = facts["delivered"]["stream_seq"]
        waiting: int = facts["num_ack_pending"]
        return delivered - waiting

    def check(self, messages: int, size: int) -> None:
        """Checks that every message has arrived once, in upper case; ``NotOnce`` if not."""
        wire = Wire(self.link.server)
        arrived = [delivery.payload for delivery in wire.read(OUT, self.messages(OUT))]
        wire.close()
        check_arrived(arrived, numbered(messages, size, self.seed), once=True)


def check_arrived(arrived: Sequence[bytes], texts: Iterable[bytes], *, once: bool) -> int:
    """Returns how many of the texts arrived again, beyond the first time.

    ``NotOnce`` if one has not arrived in upper case, or, with ``once``, has arrived again.
    """
    found, wanted = set(arrived), {text.upper() for text in texts}
    copies = len(arrived) - len(found)
    if found != wanted or (once and copies):
        lost, strange = len(wanted - found), len(found - wanted)
        raise NotOnce(
            f"{len(arrived):,} stored for {len(wanted):,} messages: {lost:,} are missing, "
            f"{strange:,} are not what they should be"
        )
    return copies


@contextmanager
def outside(seed: int) -> Iterator[Outside]:
    """A server with an empty store, for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="ebbflow-outside-") as folder:
        port = free_port()
        command = [find_binary(), "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", folder]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            with open_link(Addresses.of(f"nats://127.0.0.1:{port}")) as link:
                yield Outside(link, seed, psutil.Process(process.pid))
        finally:
            process.terminate()
            process.wait()


def free_port() -> int:
    """Returns a port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port
