"""The Pub/Sub source: messages are leased by their ack deadline, and acknowledged when settled.

The deadline is renewed while a message is in flight. Several partitions, and several pipelines, can
read one subscription: each message goes to one of them. From a subscription with message ordering,
each partition receives with one call at a time, so the messages of an ordering key stay in order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from google.api_core import exceptions
from google.pubsub_v1.types import PullResponse
from typing_extensions import override

from ebbflow.connectors.leases import LeasedMessage, LeasedSource, QueueService
from ebbflow.connectors.pubsub.pubsub_client import EMPTY, ENCODED_KEYS, WITHIN, PubsubAccess
from ebbflow.domain.errors import Unavailable
from ebbflow.domain.user_source import SourceMessage

# A message that arrives just when a call times out waits for its ack deadline, so calls are long.
_PULL = 5.0
_ANSWERED_WITHIN = 1.0
_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class PubsubSourceSettings:
    """A subscription; ``lease`` is in seconds."""

    access: PubsubAccess
    lease: float = 60.0


class PubsubSource(LeasedSource):
    """Reads one subscription."""

    def __init__(self, settings: PubsubSourceSettings) -> None:
        super().__init__(PubsubSubscription(settings), settings.lease)


class PubsubSubscription(QueueService):
    """One subscription; calls are for up to a thousand messages."""

    most = _AT_ONCE

    def __init__(self, settings: PubsubSourceSettings) -> None:
        self._access = settings.access
        self.lease = settings.lease
        self._leases_at_once = False
        self._target = {"subscription": settings.access.path}
        self._client: Any = None
        self.name = str(settings.access)

    @override
    def open(self) -> None:
        """Connects; ``SetupError`` if the subscription does not exist."""
        self._client = self._access.subscriber()
        with self._access.explaining():
            try:
                found = self._client.get_subscription(self._target, retry=None, timeout=WITHIN)
            except exceptions.PermissionDenied:
                # A login may consume without the right to see whether it is ordered: assume so.
                self.keeps_order = self._leases_at_once = True
                return
        self.keeps_order = bool(found.enable_message_ordering)
        self.lease = min(self.lease, float(found.ack_deadline_seconds))

    @override
    def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            self._client.transport.close()

    @override
    def receive(self, limit: int) -> list[LeasedMessage]:
        """Pulls messages, and leases them."""
        with self._access.explaining():
            try:
                leased = self._pull(limit, _PULL)
            except exceptions.DeadlineExceeded:
                leased = self._pull_now(limit)
        if leased and self._leases_at_once:  # the subscription's own deadline may be shorter
            self.hide([each.handle for each in leased], round(self.lease))
        return leased

    def _pull(self, limit: int, timeout: float, **more: bool) -> list[LeasedMessage]:
        request = {**self._target, "max_messages": limit, **more}
        answer = self._client.pull(request, retry=None, timeout=timeout)
        # The plain classes of protobuf: the client's own take 20 µs for a message.
        received = PullResponse.pb(answer).received_messages
        return [read_received(each) for each in received]

    def _pull_now(self, limit: int) -> list[LeasedMessage]:
        """Pulls without waiting, to find out whether there were no messages or no server."""
        try:
            return self._pull(limit, _ANSWERED_WITHIN, return_immediately=True)
        except exceptions.DeadlineExceeded:
            raise Unavailable(f"{self._access}: it does not answer") from None

    @override
    def settle(self, handles: Sequence[str]) -> None:
        """Acknowledges messages."""
        request = {**self._target, "ack_ids": list(handles)}
        with self._access.explaining():
            self._client.acknowledge(request, retry=None, timeout=WITHIN)

    @override
    def hide(self, handles: Sequence[str], seconds: int) -> None:
        """Sets the ack deadline from now on."""
        request = {**self._target, "ack_ids": list(handles), "ack_deadline_seconds": seconds}
        with self._access.explaining():
            self._client.modify_ack_deadline(request, retry=None, timeout=WITHIN)


def read_received(received: Any) -> LeasedMessage:
    """Returns a leased message from what protobuf has read."""
    raw = received.message
    headers = dict(raw.attributes)
    keys = _read_keys(headers.pop(ENCODED_KEYS, None)) or [raw.ordering_key or ""]
    headers.pop(EMPTY, None)
    message = SourceMessage(
        raw.data,
        raw.message_id.encode(),
        raw.publish_time.ToDatetime(UTC) if raw.HasField("publish_time") else None,
        [] if keys == [""] else keys,
        headers,
        # The same in all processes: a subscription has no partitions.
        partition=0,
    )
    return LeasedMessage(received.ack_id, message)


def _read_keys(text: str | None) -> list[str]:
    """Returns the keys that a sink has written; none if the text is something else."""
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    fits = isinstance(found, list) and all(isinstance(key, str) for key in found)
    return found if fits else []


def attributes_of(headers: Mapping[str, str], keys: Sequence[str], empty: bool) -> dict[str, str]:
    """Returns the attributes of a message, from which ``read_received`` takes headers and keys."""
    attributes = dict(headers)
    if keys:
        attributes[ENCODED_KEYS] = json.dumps(list(keys))
    if empty:  # Pub/Sub refuses a message with neither a value nor an attribute
        attributes[EMPTY] = "true"
    return attributes
