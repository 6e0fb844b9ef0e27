"""The options of a nack, as functions write and read them; what is not set stays unset."""

from __future__ import annotations

from ebbflow.domain.message import NackOptions
from ebbflow.numaflow.proto import nack_options_pb2

_LONGEST_DELAY = 2**53 - 1
"""Milliseconds: longer than any delay that means something, and all that a delay can hold."""


def read_options(said: nack_options_pb2.NackOptions) -> NackOptions:
    """Returns what a function asked for."""
    return NackOptions(
        min(said.delay, _LONGEST_DELAY) if said.HasField("delay") else None,
        said.max_deliveries if said.HasField("max_deliveries") else None,
        said.reason if said.HasField("reason") else None,
    )


def write_options(options: NackOptions) -> nack_options_pb2.NackOptions:
    """Returns options as a function hears them."""
    return nack_options_pb2.NackOptions(
        delay=options.delay, max_deliveries=options.max_deliveries, reason=options.reason
    )
