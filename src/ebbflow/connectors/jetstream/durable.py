"""A durable pull consumer on a stream of the user's: made if it is missing, refused if unfit.

Unfit is one with which messages could get lost or come at the wrong time: that does not want each
message acknowledged, that gives messages up by itself, or that adds waits of its own to a nack.
What a spec does not say about a consumer stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ebbflow.errors import SetupError
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
