"""A durable pull consumer on a stream of the user's, and acknowledgements that have arrived there.

A consumer is made if it is missing and refused if it is unfit. Unfit is one with which messages
could get lost or come at the wrong time: that does not want each message acknowledged, that gives
messages up by itself, or that adds waits of its own to a nack. What a spec does not say about a
consumer stays as it is.

While a consumer has no leader, an acknowledgement that nobody waits for is lost without a sign. So
each is sent as a request, many at a time, and again until the server has confirmed it. A copy does
no harm: an acknowledged message stays acknowledged, and one that is nacked twice comes again at
most once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Self

from nats.aio.msg import Msg

from ebbflow.errors import JetStreamUnavailable, SetupError
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.pull import EPOCH

_NO_CONSUMER = 10014
_EXISTS = frozenset({10013, 10148})
_NANOS = 1_000_000_000
DEFAULT_ACK_WAIT = 30.0


@dataclass(frozen=True, slots=True)
class Durable:
    """The consumer that is wanted; what is ``None`` may be as it is, or is JetStream's default.

    ``start`` is a deliver policy, with its number if it has one: ``by_start_sequence 5``.
    """

    stream: str
    name: str
    start: str | None = None
    subjects: tuple[str, ...] | None = None
    ack_wait: float | None = None

    def config(self) -> dict[str, Any]:
        """Returns the consumer to make. Messages that wait for a delay must not hold up others."""
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
        """Returns the configuration of the consumer, which is there from now on and fit.

        ``SetupError`` when there is no such stream, or the consumer is not fit.
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
            if error.code not in _EXISTS:  # another partition was faster
                raise

    async def read_info(
        self, client: SecuredClient, patience: float = api.PATIENCE
    ) -> dict[str, Any]:
        """Returns what the consumer is and how far it has got, as its leader knows."""
        call = f"CONSUMER.INFO.{self.stream}.{self.name}"
        return await api.call(client, call, patience=patience)

    async def is_gone(self, client: SecuredClient) -> bool:
        """Returns whether consumer or stream were deleted; ``False`` while nobody can tell."""
        try:
            await self.read_info(client, patience=2.0)
        except api.ApiError as error:
            return error.code in (_NO_CONSUMER, api.NOT_FOUND)
        except SetupError:
            return False
        return False

    def _problems(self, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Returns what makes a consumer unfit, and what to do about it."""
        other = "Name another consumer in the spec, or leave that out to have one made."
        if config.get("deliver_subject"):
            yield "pushes its messages; it has to be a pull consumer", other
        if config["ack_policy"] != "explicit":
            yield f"has ack policy {config['ack_policy']}; it has to be explicit", other
        if config.get("max_deliver", -1) > 0:
            yield (
                f"gives a message up after {config['max_deliver']} deliveries, and it is lost then",
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


WINDOW = 500
# Long, for an answer may be late: a nack that is sent twice may have its message given twice.
_SILENCE = 2.0
_NOBODY = 0.1


@dataclass(slots=True)
class _Acknowledgement:
    """An answer to a delivery, and when it is to be sent again."""

    subject: str
    word: bytes
    due: float = 0.0


class Acks:
    """Sends acknowledgements, one call at a time, on the client's loop."""

    def __init__(self, client: SecuredClient) -> None:
        self._client = client
        self._inbox = client.new_inbox()
        self._numbers = count()
        self._open: dict[str, _Acknowledgement] = {}
        self._confirmed = asyncio.Event()

    @classmethod
    async def open(cls, client: SecuredClient) -> Self:
        """Listens for confirmations, and returns the acknowledgements ready to send."""
        acks = cls(client)
        await client.subscribe(
            f"{acks._inbox}.*", cb=acks._receive, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        return acks

    async def confirm(self, answers: Sequence[tuple[str, bytes]], within: float) -> None:
        """Returns when the server has confirmed all; each is a reply subject and what to say.

        ``JetStreamUnavailable`` when that takes too long.
        """
        deadline = time.monotonic() + within
        for start in range(0, len(answers), WINDOW):
            part = [_Acknowledgement(*answer) for answer in answers[start : start + WINDOW]]
            self._open = {f"{self._inbox}.{next(self._numbers)}": answer for answer in part}
            self._confirmed.clear()
            async with self._client.unless_denied(part[0].subject):
                while self._open and time.monotonic() < deadline:
                    await self._send_due()
            if self._open:
                left = len(self._open) + len(answers) - start - len(part)
                problem = f"{left} are not confirmed, so their messages will come again"
                raise JetStreamUnavailable("acknowledgements", within, problem)

    async def _send_due(self) -> None:
        """Sends what is to be sent now, and waits a moment for the confirmation of all."""
        now = time.monotonic()
        # While there is no connection, copies would pile up in the client.
        due = [item for item in self._open.items() if item[1].due <= now]
        for inbox, answer in due if self._client.is_connected else ():
            answer.due = now + _SILENCE
            await self._client.publish(answer.subject, answer.word, reply=inbox)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._confirmed.wait(), _NOBODY)

    async def _receive(self, message: Msg) -> None:
        if "Status" not in (message.headers or {}):
            self._open.pop(message.subject, None)
        elif answer := self._open.get(message.subject):
            answer.due = time.monotonic() + _NOBODY  # nobody leads at the moment
        if not self._open:
            self._confirmed.set()
