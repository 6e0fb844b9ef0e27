"""The nack: ``NackOptions``, ``Nack`` and ``nack``, by which user code asks for a redelivery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from ebbflow.durations import Duration, milliseconds


@dataclass(frozen=True, slots=True, init=False)
class NackOptions:
    """How a nacked message is to come back. All fields are optional and unset is not zero.

    ``delay`` is kept in milliseconds (any ``Duration`` is accepted): the message is not
    redelivered before it is over. ``max_deliveries`` is the number of *re*deliveries allowed, so
    ``2`` means at most three calls; after that the message goes to the fallback sink, if the
    vertex has one, else to the dead letters. ``reason`` is for people: logged, kept on the
    message and on its dead letter, never used for routing.
    """

    delay: int | None
    max_deliveries: int | None
    reason: str | None

    def __init__(
        self,
        delay: Duration | None = None,
        max_deliveries: int | None = None,
        reason: str | None = None,
    ) -> None:
        if max_deliveries is not None and (
            isinstance(max_deliveries, bool)
            or not isinstance(max_deliveries, int)
            or not 0 <= max_deliveries < 2**32
        ):
            raise ValueError(
                f"max_deliveries must be a whole number from 0, not {max_deliveries!r}"
            )
        if reason is not None and not isinstance(reason, str):
            raise ValueError(f"reason must be text, not {reason!r}")
        object.__setattr__(self, "delay", None if delay is None else milliseconds(delay))
        object.__setattr__(self, "max_deliveries", max_deliveries)
        # A reason may come from anywhere; what cannot be written must not stop a redelivery.
        text = None if reason is None else reason.encode("utf-8", "replace").decode()
        object.__setattr__(self, "reason", text)


class Nack(Exception):
    """Raised by user code, at any depth, to have the message it is working on redelivered.

    In a sink it nacks every message of the call; return ``Response.nack`` to nack only some.
    """

    def __init__(
        self,
        delay: Duration | None = None,
        max_deliveries: int | None = None,
        reason: str | None = None,
    ) -> None:
        self.options = NackOptions(delay, max_deliveries, reason)
        super().__init__(self.options.delay, max_deliveries, reason)

    @classmethod
    def of(cls, options: NackOptions | None) -> Nack:
        """The exception that asks for what the options say."""
        wish = options or NackOptions()
        return cls(wish.delay, wish.max_deliveries, wish.reason)

    def __str__(self) -> str:
        return self.options.reason or "nack"


def nack(
    delay: Duration | None = None,
    max_deliveries: int | None = None,
    reason: str | None = None,
) -> NoReturn:
    """Give the message at hand back for redelivery: ``raise Nack(...)`` as a call."""
    raise Nack(delay, max_deliveries, reason)
