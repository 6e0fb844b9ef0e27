"""A program that publishes a message every few milliseconds and notes the outcome of each."""

from __future__ import annotations

import threading
import time
from collections import Counter
from itertools import count
from typing import Any

from ebbflow.domain.errors import PublishError
from ebbflow.nats.stored import read_subject
from ebbflow.publishing import Publisher
from tests.cluster.cluster import Cluster
from tests.waiting import until

EVERY = 0.01


class Steady:
    """Publishes from its own thread for as long as the context lasts."""

    def __init__(self, url: str, subject: str, name: str = "steady", **options: Any) -> None:
        self.subject = subject
        self.name = name
        self.acked: dict[str, int] = {}
        self.failed: dict[str, PublishError] = {}
        self.attempts = 0
        self.gap = 0.0
        self._url = url
        self._options = options
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Steady:
        self._thread.start()
        self.wait_for_more(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_more(self, acks: int) -> None:
        """Wait until that many more messages are stored."""
        seen = len(self.acked)
        until(lambda: len(self.acked) >= seen + acks or not self._thread.is_alive())
        assert self._thread.is_alive()

    def _run(self) -> None:
        last = time.monotonic()
        with Publisher(self._url, **self._options) as publisher:
            for number in count():
                if self._stop.wait(EVERY):
                    return
                name = f"{self.name}-{number}"
                try:
                    ack = publisher.publish(self.subject, b"x" * 100, msg_id=name)
                except PublishError as error:
                    self.failed[name] = error
                    continue
                self.acked[name] = ack.seq
                self.attempts = max(self.attempts, ack.attempts)
                now = time.monotonic()
                self.gap, last = max(self.gap, now - last), now

    def stored(self, cluster: Cluster, stream: str) -> Counter[str]:
        """Print the totals, and return how often each message is in the stream."""
        print(
            f"{self.name}: {len(self.acked)} stored, {len(self.failed)} failed, "
            f"longest gap between acks {self.gap:.2f} s"
        )
        client = cluster.link.client
        found = cluster.link.run(read_subject(client, stream, self.subject))
        names = (message.headers["Nats-Msg-Id"] for message in found)
        return Counter(name for name in names if name.startswith(f"{self.name}-"))
