"""Pub/Sub clients: their login, and the meaning of their errors.

Calls are single requests without the client's own retries. A temporary error is ``Unavailable``,
and every other one is a mistake in the spec or the project: ``SetupError``. No text shows secrets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError, TransportError
from google.oauth2 import service_account
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.secrets import Secret

WITHIN = 10.0
"""The most seconds that a call may take."""

ENCODED_KEYS, EMPTY = "ebbflow.keys", "ebbflow.empty"
"""Attributes: the keys of a message as a JSON list, and a flag for an empty value."""

_LARGEST = 64 * 1024 * 1024
_OPTIONS = [
    ("grpc.max_receive_message_length", _LARGEST),
    ("grpc.max_send_message_length", _LARGEST),
    # A client reconnects soon after an outage, and shares no back-off with other clients.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
]
_PASSING = (
    exceptions.ServerError,  # unavailable, internal, deadline exceeded, unknown
    exceptions.TooManyRequests,
    exceptions.Aborted,
    exceptions.Cancelled,
    exceptions.RetryError,
)


@dataclass(frozen=True, slots=True)
class PubsubAccess:
    """A topic or a subscription of a project, and the login.

    ``endpoint`` is another address of the service. With ``http://`` it is an emulator, without TLS
    and login, and so is the address in ``PUBSUB_EMULATOR_HOST``. ``credentials`` is the key of a
    service account, as JSON.
    """

    project: str
    kind: str
    name: str
    endpoint: str | None = None
    credentials: Secret | None = None

    def __str__(self) -> str:
        return f"Pub/Sub {self.kind} {self.name} of {self.project}"

    @property
    def path(self) -> str:
        """Its full resource name."""
        return f"projects/{self.project}/{self.kind}s/{self.name}"

    def subscriber(self) -> Any:
        """Returns a client for receiving, which connects when it is first used."""
        return self._connect(SubscriberClient, SubscriberGrpcTransport)

    def publisher(self) -> Any:
        """Returns a client for publishing, which connects when it is first used."""
        return self._connect(PublisherClient, PublisherGrpcTransport)

    def _connect(self, client: Any, transport: Any) -> Any:
        with self.explaining():
            if emulator := self._emulator:
                channel = grpc.insecure_channel(emulator, options=_OPTIONS)
            else:
                channel = transport.create_channel(
                    self.endpoint or transport.DEFAULT_HOST,
                    credentials=self._read_credentials(transport.AUTH_SCOPES),
                    scopes=transport.AUTH_SCOPES,
                    options=_OPTIONS,
                )
            return client(transport=transport(channel=channel))

    @property
    def _emulator(self) -> str | None:
        if self.endpoint is None:
            return os.environ.get("PUBSUB_EMULATOR_HOST") or None
        found = self.endpoint.removeprefix("http://")
        return None if found == self.endpoint else found.rstrip("/")

    def _read_credentials(self, scopes: tuple[str, ...]) -> Any:
        if self.credentials is None:
            return None  # the client finds its own
        try:
            key = json.loads(self.credentials.reveal())
            made: Any = service_account.Credentials
            return made.from_service_account_info(key, scopes=scopes)
        except (ValueError, TypeError, AttributeError, GoogleAuthError):
            raise SetupError(
                "The credentials for Pub/Sub are not the key of a service account.",
                "Let credentialsSecret hold the JSON that Google Cloud provides for such a key.",
            ) from None

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Converts the client's errors to ``Unavailable`` or ``SetupError``."""
        try:
            yield
        except (*_PASSING, TransportError) as error:
            raise Unavailable(f"{self}: {describe_pubsub_error(error)}") from None
        except exceptions.NotFound:
            raise SetupError(
                f"There is no {self} that this login can see.",
                f"Create the {self.kind}, or correct {self.kind} and project.",
            ) from None
        except (exceptions.GoogleAPICallError, GoogleAuthError) as error:
            raise SetupError(
                f"{self} refuses: {describe_pubsub_error(error)}.",
                "Correct the login or its permissions.",
            ) from None


def describe_pubsub_error(error: Exception) -> str:
    """Returns the message of the service or its client, on one line."""
    text = str(getattr(error, "message", None) or error)
    return " ".join(text.split()).rstrip(".") or type(error).__name__
