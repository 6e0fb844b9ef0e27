"""The serving store: answers under the id of the request that they belong to.

The built-in store is a NATS key-value bucket; sinks write to it as part of settling, one entry for
each message that answered, so that a replay after a crash writes the same entry again. A store of
the user's own is a class with ``put`` and ``get``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ebbflow.core.publications import answer_key
from ebbflow.nats.link import Link
from ebbflow.nats.stored import read_last


class ServingStore(Protocol):
    """A store of the user's own. Made once per worker; may have open and close."""

    def put(self, id: str, payloads: Sequence[bytes]) -> None:
        """Adds answers to a request. At least once: the same may come again after a crash.

        What it raises redelivers the message that answered, with back-off.
        """

    def get(self, id: str) -> list[bytes]:
        """Returns all answers to a request so far; none for one that is not known."""


def bucket_config(bucket: str, ttl_ms: int, replicas: int = 1) -> dict[str, Any]:
    """Describes the stream behind the bucket, as any NATS tool knows buckets."""
    return {
        "name": f"KV_{bucket}",
        "subjects": [f"$KV.{bucket}.>"],
        "storage": "file",
        "num_replicas": replicas,
        "max_msgs_per_subject": 1,
        "max_age": ttl_ms * 1_000_000,
        # No message id may be remembered for longer than the message itself is kept.
        "duplicate_window": min(120_000, ttl_ms) * 1_000_000,
        "discard": "new",
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
    }


class NatsStore:
    """The built-in store, for reading answers."""

    def __init__(self, link: Link, bucket: str) -> None:
        self._link = link
        self._bucket = bucket

    def get(self, id: str) -> list[bytes]:
        """Returns all answers to a request so far, in the order in which they were stored."""
        subject = f"$KV.{self._bucket}.{answer_key(id)}.>"
        entries = self._link.run(read_last(self._link.client, f"KV_{self._bucket}", subject))
        return [entry.payload for entry in entries]
