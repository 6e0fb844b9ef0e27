"""Moto's server, which speaks the protocol of SQS, in a process of its own on a free port.

A ``relay`` in front of it lets a test cause an outage without losing the queues.
"""

from __future__ import annotations

import importlib.util
import itertools
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.connectors.relay import Relay
from tests.ports import free_port
from tests.waiting import until

_ROOT = Path(__file__).parents[3]
_NAMES = itertools.count()
_LOGIN = {"aws_access_key_id": "shop", "aws_secret_access_key": "sesame"}
_NEEDED = ("boto3", "moto", "flask", "flask_cors")


def find_missing() -> list[str]:
    """Why there is no server to test with."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    return [f"these packages are missing: {', '.join(missing)}"] if missing else []


class Sqs:
    """A server with queues. ``url`` leads to it through the relay of a test."""

    relay: Relay

    def __init__(self) -> None:
        import boto3

        port = self.port = free_port()
        self._process = self._start(port)
        until(lambda: _answers(port), 60, self._process)
        self.client: Any = boto3.client(
            "sqs", region_name="us-east-1", endpoint_url=f"http://127.0.0.1:{port}", **_LOGIN
        )

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.connectors.sqs.program", str(port)], cwd=_ROOT,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.relay.port}"

    def close(self) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait(10)

    def queue(self, fifo: bool = False, **attributes: str) -> str:
        """Make a queue with a name of its own; returns the name."""
        name = f"orders-{next(_NAMES)}" + (".fifo" if fifo else "")
        given = attributes | ({"FifoQueue": "true"} if fifo else {})
        self.client.create_queue(QueueName=name, Attributes=given)
        return name

    def address(self, queue: str) -> str:
        found: str = self.client.get_queue_url(QueueName=queue)["QueueUrl"]
        return found

    def send(self, queue: str, *bodies: str, **fields: Any) -> None:
        entries = [
            {"Id": str(number), "MessageBody": body, **fields} for number, body in enumerate(bodies)
        ]
        if queue.endswith(".fifo"):
            for entry in entries:
                entry["MessageDeduplicationId"] = f"{next(_NAMES)}"
        url = self.address(queue)
        for start in range(0, len(entries), 10):
            self.client.send_message_batch(QueueUrl=url, Entries=entries[start : start + 10])

    def receive(self, queue: str) -> list[dict[str, Any]]:
        """Receive and delete all that is visible now."""
        found: list[dict[str, Any]] = []
        asked = {"MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["All"]}
        url = self.address(queue)
        while some := self.client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, **asked
        ).get("Messages", []):
            found += some
            for each in some:
                self.client.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
        return found

    def depth(self, queue: str) -> tuple[int, int]:
        """How many messages are visible, and how many are in flight."""
        url = self.address(queue)
        found = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        return int(found[names[0]]), int(found[names[1]])


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
