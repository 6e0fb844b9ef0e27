"""Pulsar connections and producers, and the meaning of the client's errors.

The driver creates settings as plain data for workers. They hold the secrets themselves, which no
text shows. The client starts threads, so only workers create it, never the driver.

An error is either a mistake in the spec (``SetupError``) or temporary: the client or the vertex
then retries, and no message is penalised.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pulsar

from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.secrets import Secret

ANSWER_WITHIN = 10
"""Seconds that a broker may take to answer a request, and to confirm a message."""

_OK = pulsar.Result.Ok
_MARGIN = 10.0
_MOST_PENDING = 20_000
_BATCH_BYTES = 512 * 1024
_LINGER = 5

_MISTAKES = {
    "AuthenticationError": "Correct auth: in the spec.",
    "AuthorizationError": "Give this login the rights, or use another one.",
    "TopicNotFound": "Create the topic, or correct topic:.",
    "InvalidTopicName": "Correct topic:.",
    "InvalidUrl": "Correct serverAddr:.",
    "InvalidConfiguration": "Correct the fields of pulsar: in the spec.",
    "IncompatibleSchema": "Use a topic without a schema, or with the schema BYTES.",
    "NotAllowedError": "Check that the topic and the subscription allow it.",
    "TopicTerminated": "The topic takes no more messages; use another one.",
}
"""Errors that a retry cannot solve, and what to do."""

_SILENT = frozenset({"Timeout", "ConnectError", "NotConnected"})


@dataclass(frozen=True, slots=True)
class PulsarAccess:
    """The brokers, and the security of the connection.

    ``tls`` holds PEM files by their role: ``ca``, ``cert``, ``key``.
    """

    url: str
    token: Secret | None = None
    login: tuple[Secret, Secret] | None = None
    tls: tuple[tuple[str, Secret], ...] = ()

    def __str__(self) -> str:
        return f"Pulsar at {self.url}"

    def explain(self, error: Exception, what: str) -> SetupError | Unavailable:
        """Converts an error of the client; ``what`` names the resource, as in "topic 'a'"."""
        name, why = type(error).__name__, describe_pulsar_error(error)
        if name in _MISTAKES:
            return SetupError(f"{self} does not allow using {what}: {why}.", _MISTAKES[name])
        if name in _SILENT:
            # The client reports a broker that is down and one that refuses the login alike.
            return Unavailable(f"{self}: {why}; it is down, or serverAddr, auth or tls is wrong")
        return Unavailable(f"{self} does not allow using {what} now: {why}")


def describe_pulsar_error(error: Exception) -> str:
    """Returns the name of an error, which is all that the client reports."""
    return str(error).removeprefix("Pulsar error: ") or type(error).__name__


def describe_result(result: Any) -> str:
    """Returns the name of a result that the client passes to a callback."""
    return str(result).removeprefix("Result.")


class PulsarConnection:
    """A client, and the certificate files that it reads. Created in the process that uses it."""

    def __init__(self, access: PulsarAccess) -> None:
        self._files = tempfile.TemporaryDirectory(prefix="ebbflow-pulsar-")
        try:
            self.client = pulsar.Client(
                access.url,
                operation_timeout_seconds=ANSWER_WITHIN,
                connection_timeout_ms=ANSWER_WITHIN * 1_000,
                stats_interval_in_seconds=0,
                # Whatever the client would log is also in its errors, which Ebbflow shows.
                logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
                **self._protection(access),
            )
        except BaseException:
            self._files.cleanup()
            raise

    def _protection(self, access: PulsarAccess) -> dict[str, Any]:
        files = {name: self._write(name, content) for name, content in access.tls}
        options = {
            "tls_validate_hostname": True,
            "tls_trust_certs_file_path": files.get("ca", ssl.get_default_verify_paths().cafile),
            "tls_certificate_file_path": files.get("cert"),
            "tls_private_key_file_path": files.get("key"),
        }
        if access.token is not None:
            options["authentication"] = pulsar.AuthenticationToken(access.token.reveal())
        elif access.login is not None:
            user, password = (secret.reveal() for secret in access.login)
            options["authentication"] = pulsar.AuthenticationBasic(user, password)
        elif "cert" in files:
            options["authentication"] = pulsar.AuthenticationTLS(files["cert"], files["key"])
        return options

    def _write(self, name: str, content: Secret) -> str:
        path = Path(self._files.name) / f"{name}.pem"
        path.touch(0o600)
        path.write_text(content.reveal(), encoding="utf-8")
        return str(path)

    def close(self) -> None:
        """Closes the connection in any state."""
        with contextlib.suppress(pulsar.PulsarException):
            self.client.close()
        self._files.cleanup()


# --- producers ----------------------------------------------------------------------------------


class PulsarProducer:
    """Sends messages to one topic. Used by one thread.

    The client may call back for each message on any thread, even within ``send``.
    """

    def __init__(
        self,
        connection: PulsarConnection,
        access: PulsarAccess,
        topic: str,
        name: str | None = None,
    ) -> None:
        self._producer = _make_producer(connection, access, topic, name)
        self._failed: dict[int, Any] = {}
        self._sent = 0
        self._answered: list[int] = []
        self._all_answered = threading.Event()

    @property
    def is_connected(self) -> bool:
        """Whether it is connected; reconnecting may take the client up to a minute."""
        return bool(self._producer.is_connected())

    def send(self, content: bytes | None, **facts: Any) -> None:
        """Passes a message to the client; ``wait`` returns its outcome."""
        number, self._sent = self._sent, self._sent + 1
        self._producer.send_async(content, partial(self._note, number), **facts)

    def _note(self, number: int, result: Any, _message_id: Any) -> None:
        # An exception here would end the process. Each statement is atomic for other threads.
        if result != _OK:
            self._failed[number] = result
        self._answered.append(number)
        if len(self._answered) == self._sent:
            self._all_answered.set()

    def wait(self) -> dict[int, Any]:
        """Waits for all messages since the last call; returns the failed results by number.

        ``Unavailable`` if some results stay unknown: then no message counts as stored.
        """
        with contextlib.suppress(pulsar.PulsarException):  # callbacks report each failure
            self._producer.flush()
        deadline = time.monotonic() + _MARGIN
        while len(self._answered) < self._sent:
            # Also set whenever all messages sent up to then were answered.
            self._all_answered.wait(0.1)
            self._all_answered.clear()
            if time.monotonic() > deadline:
                raise Unavailable("Pulsar's client does not report which messages are stored")
        failed, self._failed = self._failed, {}
        self._sent, self._answered = 0, []
        return failed


def _make_producer(
    connection: PulsarConnection, access: PulsarAccess, topic: str, name: str | None
) -> pulsar.Producer:
    """Returns a producer; ``SetupError`` or ``Unavailable`` if that fails."""
    try:
        return connection.client.create_producer(
            topic,
            producer_name=name,
            send_timeout_millis=ANSWER_WITHIN * 1_000,
            max_pending_messages=_MOST_PENDING,
            block_if_queue_full=True,
            batching_enabled=True,
            batching_max_allowed_size_in_bytes=_BATCH_BYTES,
            batching_max_publish_delay_ms=_LINGER,
            # Consumers of a key-shared subscription get whole batches, so each has a single key.
            batching_type=pulsar.BatchingType.KeyBased,
        )
    except pulsar.PulsarException as error:
        raise access.explain(error, f"topic {topic!r}") from None
