"""The payload of a message read as an order: what a function is to do with it. See ../README.md."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

DROP_TAG = "U+005C__DROP__"
FAIL_TAG = "U+005C__FAIL__"
NACK_TAG = "U+005C__NACK__"

_SINKS = {"fb-udsink": "fallback-sink", "ons-udsink": "on-success-sink"}

_seen: set[str] = set()
_seen_lock = threading.Lock()


@dataclass(frozen=True)
class Order:
    """A verb and its arguments; a payload without a known verb is passed on."""

    verb: str
    rest: str = ""


@dataclass(frozen=True)
class Output:
    """A message that any kind of map gives."""

    value: bytes
    keys: list[str]
    tags: list[str]


def parse(payload: bytes) -> Order:
    text = _addressed(payload.decode())
    if text.startswith("once "):
        text = text.removeprefix("once ")
        if not _first_time(text):
            return Order("pass")
    verb, _, rest = text.partition(" ")
    return Order(verb, rest)


def _addressed(payload: str) -> str:
    """The part of "@map drop;@sink fail no" that is for this kind of function."""
    if not payload.startswith("@"):
        return payload
    mine = f"@{kind()} "
    parts = (part for part in payload.split(";") if part.startswith(mine))
    return next(parts, f"{mine}pass").removeprefix(mine)


def kind() -> str:
    """Which function this process is: its first argument, or the type of its container."""
    container = os.environ.get("NUMAFLOW_UD_CONTAINER_TYPE", "")
    return _SINKS.get(container, sys.argv[1].removeprefix("async-"))


def _first_time(text: str) -> bool:
    with _seen_lock:
        before = text in _seen
        _seen.add(text)
    return not before


def trouble(order: Order) -> None:
    """Raise, sleep, end the process or never return, if the order says so."""
    match order.verb:
        case "panic":
            raise RuntimeError(order.rest)
        case "exit":
            os._exit(3)
        case "hang":
            threading.Event().wait()
        case "sleep":
            time.sleep(int(order.rest) / 1000)


def outputs(order: Order, keys: list[str], datum: Any) -> list[Output]:
    trouble(order)
    value, tags = datum.value, []
    match order.verb:
        case "none":
            return []
        case "drop":
            return [Output(b"", [], [DROP_TAG])]
        case "fail":
            return [Output(order.rest.encode(), [], [FAIL_TAG])]
        case "nack":
            return [Output(b"", [], [NACK_TAG])]
        case "tags":
            tags = order.rest.split(",")
        case "keys":
            keys = order.rest.split(",")
        case "describe":
            value = describe(keys, datum)
        case "flat":
            return [Output(part.encode(), keys, []) for part in order.rest.split(",")]
    return [Output(value, keys, tags)]


def event_time(order: Order, datum: Any) -> datetime:
    """The time that "time MILLIS" sets, else the original one."""
    if order.verb == "time":
        return datetime.fromtimestamp(int(order.rest) / 1000, UTC)
    return datum.event_time


def with_metadata(order: Order, metadata: Any) -> Any:
    """What "meta GROUP KEY VALUE" adds to the metadata of the input."""
    if order.verb == "meta":
        group, key, value = order.rest.split()
        metadata.add_key(group, key, value.encode())
    return metadata


def describe(keys: list[str], datum: Any) -> bytes:
    """What the function received of a message, as JSON with sorted names."""
    facts: dict[str, Any] = {
        "event_time": _millis(datum.event_time),
        "headers": datum.headers,
        "keys": list(keys),
        "watermark": _millis(datum.watermark),
    }
    if hasattr(datum, "id"):
        facts["id"] = datum.id
    for name in ("user", "system"):
        metadata = getattr(datum, f"{name}_metadata", None)
        if metadata is not None:
            facts[name] = {
                group: {key: metadata.value(group, key).decode() for key in metadata.keys(group)}
                for group in metadata.groups()
            }
    return json.dumps(facts, sort_keys=True).encode()


def _millis(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def record(lines: list[str]) -> None:
    """Append lines to the file that tests read; without one nothing happens."""
    path = os.environ.get("FUNCTION_RECORD")
    if path and lines:
        with open(path, "a") as file:
            file.write("".join(f"{line}\n" for line in lines))


def recorded(variable: str) -> list[str]:
    """The lines of the file that the variable names; none without it."""
    path = os.environ.get(variable)
    if not path or not os.path.exists(path):
        return []
    with open(path) as file:
        return file.read().splitlines()
