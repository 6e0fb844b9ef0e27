"""A dead letter for programs and pages: one JSON object, with nothing that JSON cannot hold."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ebbflow.deadletters.records import StoredLetter
from ebbflow.domain.message import json_bytes
from ebbflow.engine.dead_letter import HISTORY, REPLAYS, describe_cause

_BULKY = ("value", "traceback", "headers", "metadata", "history")


def describe_letter(stored: StoredLetter, whole: bool = True) -> dict[str, Any]:
    """Returns the facts of a letter; bytes that are no text become ``{"base64": …}``.

    Without ``whole`` what may be large is left out: value, traceback, headers, metadata, history.
    """
    letter = stored.letter
    facts: dict[str, Any] = {"number": stored.number}
    facts |= {name: getattr(letter, name) for name in letter.__dataclass_fields__}
    facts |= {name: _time(facts[name]) for name in ("first_seen", "last_seen", "event_time")}
    facts["why"] = describe_cause(letter.reason, letter.error)
    facts["value"] = json_bytes(letter.value)
    facts["headers"] = own_headers(stored)
    facts["metadata"] = {
        group: {key: json_bytes(value) for key, value in entries.items()}
        for group, entries in letter.metadata.items()
    }
    facts["replays"] = letter.replays
    facts["history"] = [death.to_json() for death in letter.history]
    for name in () if whole else _BULKY:
        del facts[name]
    return facts


def own_headers(stored: StoredLetter) -> dict[str, str]:
    """Returns the headers of the message, without those that a replay has added."""
    headers = stored.letter.headers
    return {name: value for name, value in headers.items() if name not in (REPLAYS, HISTORY)}


def _time(time: datetime | None) -> str | None:
    return time.isoformat() if time else None
