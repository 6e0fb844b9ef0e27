"""Connections and producers of Pulsar: how they are made, and what the client's errors mean.

Settings are plain data that the driver makes for workers. They hold the secrets themselves, none of
which shows in any text. The client starts threads, so workers make it, and the driver never does.

An error is a mistake in the spec (``SetupError``), or it is passing: the client or the vertex then
tries again, and no message is penalised.
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
    "NotAllowedError": "See whether the topic and the subscription allow it.",
    "TopicTerminated": "The topic takes no more messages; use another one.",
}
"""The errors that no further attempt gets over, and what to do."""

_SILENT = frozenset({"Timeout", "ConnectError", "NotConnected"})


@dataclass(frozen=True, slots=True)
class PulsarAccess:
    """The brokers, and what protects the connection.

    ``tls`` holds certificates in PEM form by what they are: ``ca``, ``cert``, ``key``.
    """

    url: str
    token: Secret | None = None
    login: tuple[Secret, Secret] | None = None
    tls: tuple[tuple[str, Secret], ...] = ()

    def __str__(self) -> str:
        return f"Pulsar at {self.url}"

    def explain(self, error: Exception, what: str) -> SetupError | Unavailable:
        """Returns what an error of the client means; ``what`` was to be used, as in "topic 'a'"."""
        name, why = type(error).__name__, describe_pulsar_error(error)
        if name in _MISTAKES:
            return SetupError(f"{self} does not let us use {what}: {why}.", _MISTAKES[name])
        if name in _SILENT:
            # The client does not tell a broker that is down from one that refuses us.
            return Unavailable(f"{self}: {why}; it is down, or serverAddr, auth or tls is wrong")
        return Unavailable(f"{self} does not let us use {what} now: {why}")


def describe_pulsar_error(error: Exception) -> str:
    """Returns the name of an error, which is all that the client says."""
    return str(error).removeprefix("Pulsar error: ") or type(error).__name__


def describe_result(result: Any) -> str:
    """Returns the name of a result that the client gives to a callback."""
    return str(result).removeprefix("Result.")


class PulsarConnection:
    """A client, and the files with certificates that it reads. Made in the process that uses it."""

    def __init__(self, access: PulsarAccess) -> None:
        self._files = tempfile.TemporaryDirectory(prefix="ebbflow-pulsar-")
        try:
            self.client = pulsar.Client(
                access.url,
                operation_timeout_seconds=ANSWER_WITHIN,
                connection_timeout_ms=ANSWER_WITHIN * 1_000,
                stats_interval_in_seconds=0,
                # What goes wrong is told by errors as well, where a person sees them.
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
        """Ends the connection, whatever state it is in."""
        with contextlib.suppress(pulsar.PulsarException):
            self.client.close()
        self._files.cleanup()


# --- producers ----------------------------------------------------------------------------------


class PulsarProducer:
    """Sends messages to one topic. Used by one thread.

    The client calls back for each message from any thread, also from within ``send``.
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
        """Whether there is a connection now; the client takes up to a minute for the next."""
        return bool(self._producer.is_connected())

    def send(self, content: bytes | None, **facts: Any) -> None:
        """Hands a message to the client; ``wait`` says what became of it."""
        number, self._sent = self._sent, self._sent + 1
        self._producer.send_async(content, partial(self._note, number), **facts)

    def _note(self, number: int, result: Any, _message_id: Any) -> None:
        # An exception here would end the process. Each statement is one step for other threads.
        if result != _OK:
            self._failed[number] = result
        self._answered.append(number)
        if len(self._answered) == self._sent:
            self._all_answered.set()

    def wait(self) -> dict[int, Any]:
        """Returns the results of the messages that were not stored, by their number since the last
        call; ``Unavailable`` if that is not known of all, and then none counts as stored.
        """
        with contextlib.suppress(pulsar.PulsarException):  # the callbacks say so of each
            self._producer.flush()
        deadline = time.monotonic() + _MARGIN
        while len(self._answered) < self._sent:
            # Set also whenever all that had been sent until then was answered.
            self._all_answered.wait(0.1)
            self._all_answered.clear()
            if time.monotonic() > deadline:
                raise Unavailable("Pulsar's client does not say what is stored")
        failed, self._failed = self._failed, {}
        self._sent, self._answered = 0, []
        return failed


def _make_producer(
    connection: PulsarConnection, access: PulsarAccess, topic: str, name: str | None
) -> pulsar.Producer:
    """Returns a producer; ``SetupError`` or ``Unavailable`` says why there is none."""
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
            # Consumers of a key-shared subscription get a batch as a whole, so it has one key.
            batching_type=pulsar.BatchingType.KeyBased,
        )
    except pulsar.PulsarException as error:
        raise access.explain(error, f"topic {topic!r}") from None
