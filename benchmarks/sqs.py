"""SQS to SQS: a queue, upper case, another queue.

The server is ElasticMQ, with its queues in memory. Every run has its own queues.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks import contest
from benchmarks.outside import check_arrived
from benchmarks.queues import Arrived, NoService, Service
from benchmarks.work import numbered
from ebbflow import connectors
from ebbflow.connectors import SecretRef

if TYPE_CHECKING:
    from tests.connectors.sqs.server import Sqs

LOOP = "bare boto3 loop"
_REGION = "us-east-1"
_LOGIN = {"AWS_ACCESS_KEY_ID": "shop", "AWS_SECRET_ACCESS_KEY": "sesame"}
_LONG = 3_600


@contextmanager
def sqs() -> Iterator[Service]:
    """Yields a server, for as long as the context lasts; ``NoService`` if none is available."""
    from tests.connectors.kafka.jars import NoBroker
    from tests.connectors.sqs.elasticmq import ElasticMq

    try:
        server = ElasticMq()
    except (ImportError, NoBroker) as error:
        raise NoService(str(error)) from error
    try:
        with patch.dict(os.environ, _LOGIN | {"AWS_DEFAULT_REGION": _REGION}):
            yield Service(contest.SQS, LOOP, "sqs_loop", partial(Queues, server), 3_000)
    finally:
        server.close()


class Queues:
    """The queues of one run."""

    def __init__(self, server: Sqs, messages: int, size: int, seed: int) -> None:
        self._server = server
        self._messages = messages
        self._texts = partial(numbered, messages, size, seed)
        self._source, self._out = server.queue(), server.queue()
        self._ended = 0.0
        url = f"http://127.0.0.1:{server.port}"
        self.source, self.sink = _at(url, self._source), _at(url, self._out)
        self.words = (url, server.address(self._source), server.address(self._out))
        server.send(self._source, *(text.decode() for text in self._texts()))

    def done(self) -> int:
        """Returns how many messages have been deleted from the first queue."""
        done = self._messages - sum(self._server.depth(self._source))
        if done == self._messages:
            self._ended = self._ended or time.time()
        return done

    def check(self) -> Arrived:
        """Returns the seconds from the first message in the second queue to the last deletion."""
        found = [*self._arrived()]
        bodies = [message["Body"].encode() for message in found]
        copies = check_arrived(bodies, self._texts(), once=False)
        began = min(int(message["Attributes"]["SentTimestamp"]) for message in found) / 1000
        return Arrived(self._ended - began, copies)

    def _arrived(self) -> Iterator[dict[str, Any]]:
        asked = {
            "QueueUrl": self._server.address(self._out),
            "MaxNumberOfMessages": 10,
            "VisibilityTimeout": _LONG,
            "MessageSystemAttributeNames": ["SentTimestamp"],
        }
        while some := self._server.client.receive_message(**asked).get("Messages"):
            yield from some


def _at(url: str, queue: str) -> connectors.Sqs:
    # Workers were started before the login was in the environment.
    key_id, key = (SecretRef(env=name) for name in _LOGIN)
    return connectors.Sqs(
        aws_region=_REGION,
        queue_name=queue,
        endpoint_url=url,
        access_key_id_secret=key_id,
        secret_access_key_secret=key,
    )
