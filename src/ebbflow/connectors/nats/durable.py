"""A durable pull consumer on a user's stream, and confirmed acknowledgements.

A missing consumer is created; an unfit one is refused. A consumer is unfit if it could lose
messages or deliver them at the wrong time: if it does not want each message acknowledged, stops
redelivering by itself, or adds its own waits to a nack. A setting that the spec leaves out stays as
the consumer has it.

While a consumer has no leader, a plain acknowledgement is lost silently. So each is sent as a
request, many at a time, and repeated until the server has confirmed it. A copy does no harm: an
acknowledged message stays acknowledged, and one that is nacked twice is redelivered at most once
more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ebbflow.domain.errors import JetStreamUnavailable, SetupError
from ebbflow.nats import api
from ebbflow.nats.client import Answer, SecuredClient
from ebbflow.nats.pull import EPOCH, has_domain
from ebbflow.nats.wire import Publishes

_NO_CONSUMER = 10014
_EXISTS = frozenset({10013, 10148})
_NANOS = 1_000_000_000
DEFAULT_ACK_WAIT = 30.0


@dataclass(frozen=True, slots=True)
class Durable:
    """The wanted consumer. ``None`` accepts an existing consumer's setting, or the default.

    ``start`` is a deliver policy, with its number if it has one: ``by_start_sequence 5``.
    """

    stream: str
    name: str
    start: str | None = None
    subjects: tuple[str, ...] | None = None
    ack_wait: float | None = None

    def config(self) -> dict[str, Any]:
        """Returns the consumer to create. Messages waiting for a delay must not block others."""
        return {
            "durable_name": self.name,
            "ack_policy": "explicit",
            "max_deliver": -1,
            "max_ack_pending": -1,
            **replace(
                self, start=self.start or "all", ack_wait=self.ack_wait or DEFAULT_ACK_WAIT
            ).wanted,
        }

    @property
    def wanted(self) -> dict[str, Any]:
        """The settings that are wanted, as JetStream writes them."""
        every = (">",) if self.start == "last_per_subject" else None
        subjects = self.subjects or every
        return {
            **(_parse_start(self.start) if self.start else {}),
            **({"filter_subjects": sorted(subjects)} if subjects else {}),
            **({"ack_wait": round(self.ack_wait * _NANOS)} if self.ack_wait else {}),
        }

    async def ensure(self, client: SecuredClient) -> dict[str, Any]:
        """Creates the consumer if it is missing; returns its configuration.

        ``SetupError`` if there is no such stream, or the consumer is unfit.
        """
        try:
            consumer = await self._find(client)
            if consumer is None:
                body = {"stream_name": self.stream, "config": self.config(), "action": "create"}
                await self._call(client, f"CONSUMER.CREATE.{self.stream}.{self.name}", body)
                consumer = await self.read_info(client)
        except api.ApiError as error:
            if error.code == api.NOT_FOUND:
                raise SetupError(f"There is no stream {self.stream}.", "Create it.") from None
            raise SetupError(f"NATS refused the consumer {self.name}: {error}.") from None
        config: dict[str, Any] = consumer["config"]
        if problem := next(self._problems(config), None):
            what, step = problem
            raise SetupError(f"Consumer {self.name} of stream {self.stream} {what}.", step)
        return config

    async def _find(self, client: SecuredClient) -> dict[str, Any] | None:
        try:
            return await self.read_info(client)
        except api.ApiError as error:
            if error.code != _NO_CONSUMER:
                raise
            return None

    async def _call(self, client: SecuredClient, call: str, body: dict[str, Any]) -> None:
        try:
            await api.call(client, call, body)
        except api.ApiError as error:
            if error.code not in _EXISTS:  # another partition has created it
                raise

    async def read_info(
        self, client: SecuredClient, patience: float = api.PATIENCE
    ) -> dict[str, Any]:
        """Returns the consumer's configuration and progress, from its leader."""
        call = f"CONSUMER.INFO.{self.stream}.{self.name}"
        return await api.call(client, call, patience=patience)

    async def is_gone(self, client: SecuredClient) -> bool:
        """Returns whether consumer or stream were deleted; ``False`` while unknown."""
        try:
            await self.read_info(client, patience=2.0)
        except api.ApiError as error:
            return error.code in (_NO_CONSUMER, api.NOT_FOUND)
        except SetupError:
            return False
        return False

    def _problems(self, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yields each reason why the consumer is unfit, with what to do about it."""
        other = "Name another consumer in the spec, or leave that out to have one made."
        if config.get("deliver_subject"):
            yield "pushes its messages; it has to be a pull consumer", other
        if config["ack_policy"] != "explicit":
            yield f"has ack policy {config['ack_policy']}; it has to be explicit", other
        if config.get("max_deliver", -1) > 0:
            yield (
                f"stops redelivering after {config['max_deliver']} deliveries and loses messages",
                f"Set max_deliver to -1: max_deliveries of a nack does the same. {other}",
            )
        if config.get("backoff"):
            yield (
                "has a backoff, which changes the delays of nacks",
                f"Remove it: the spec's onError has one. {other}",
            )
        for name, value in self.wanted.items():
            there = _read_setting(config, name)
            if there != _read_setting({name: value}, name):
                yield (
                    f"has {name} {_format(there)}, where the spec says {_format(value)}",
                    "Leave it out of the spec, change the consumer, or name another one.",
                )


def _parse_start(start: str) -> dict[str, Any]:
    policy, _, number = start.partition(" ")
    if policy == "by_start_sequence":
        return {"deliver_policy": policy, "opt_start_seq": int(number)}
    if policy == "by_start_time":
        moment = EPOCH + timedelta(milliseconds=int(number))
        return {"deliver_policy": policy, "opt_start_time": moment.isoformat()}
    return {"deliver_policy": policy}


def _read_setting(config: Mapping[str, Any], name: str) -> Any:
    value = config.get(name)
    if name == "filter_subjects":
        subject = config.get("filter_subject")
        return sorted(value or ([subject] if subject else []))
    return datetime.fromisoformat(value) if name == "opt_start_time" and value else value


def _format(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value / _NANOS:g} s" if isinstance(value, int) and value >= 1_000_000 else str(value)


# Long, because a confirmation may be late, and a nack sent twice may redeliver its message twice.
_SILENCE = 2.0
_LEADERLESS = 0.1


async def confirm(
    client: SecuredClient, subjects: Sequence[bytes], payloads: Sequence[bytes], within: float
) -> None:
    """Sends acks or nacks to the reply subjects; returns when the server has confirmed all.

    ``JetStreamUnavailable`` if that takes too long.
    """
    deadline = time.monotonic() + within
    rows = Publishes.plain(subjects, payloads)
    while rows:
        if (left := deadline - time.monotonic()) <= 0:
            problem = f"{len(rows)} are not confirmed, so their messages will be redelivered"
            raise JetStreamUnavailable("acknowledgements", within, problem)
        answers: list[Answer] = [None] * len(rows)
        if client.is_connected:  # without a connection, copies would pile up in the client
            async with client.unless_denied(rows.subjects[0].decode()):
                answers = await _ask(client, rows, min(_SILENCE, left))
        rows = rows.pick([n for n, answer in enumerate(answers) if not isinstance(answer, bytes)])
        if rows:
            await asyncio.sleep(_LEADERLESS)  # there is no leader at the moment


async def _ask(client: SecuredClient, rows: Publishes, silence: float) -> list[Answer]:
    """Sends acks or nacks; returns the server's answers to those that are confirmed."""
    if not _keeps_order(client, rows.subjects[0]):
        return await client.request_all(rows, silence)
    connections, last = client.stats["reconnects"], len(rows) - 1
    client.send(rows.pick(range(last)).encode_unanswered())
    answers = await client.request_all(rows.pick([last]), silence)
    if not isinstance(answers[0], bytes) or client.stats["reconnects"] != connections:
        # Everything sent before the connection was lost may be lost, too.
        return [None] * len(rows)
    return answers * len(rows)


def _keeps_order(client: SecuredClient, reply: bytes) -> bool:
    """Returns whether one confirmation proves that all earlier acks and nacks have arrived.

    It does if a single server takes them all in order from this connection. In a cluster, or behind
    a leaf node, one may get lost between two servers while later ones arrive.
    """
    return client.is_on_a_single_server and not has_domain(reply)
