"""Which dead letters a request means, and how it changes them; what is wrong is a 400."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from ebbflow.deadletters import LetterEdit, LetterFilter
from ebbflow.ui.request import read_name, read_number, read_time
from ebbflow.web.refusal import Refusal

_TEXTS = ("reason", "cause", "error", "text", "id", "key", "header")
_TIMES = ("since", "until")
_FIELDS = frozenset((*_TEXTS, *_TIMES, "vertex", "up_to"))
_LARGEST_NUMBER = 10**15 - 1
_MOST_NUMBERS = 100_000


def read_filter(fields: Mapping[str, Any]) -> LetterFilter:
    """Returns the filter that parameters of an address, or a JSON object, mean.

    Empty fields are left out. Fields of other things are passed over.
    """
    texts = {name: _text(fields[name], name) for name in _FIELDS & fields.keys()}
    chosen: dict[str, Any] = {name: texts.get(name) for name in _TEXTS}
    chosen |= {name: read_time(texts[name], name) for name in _TIMES if texts.get(name)}
    if texts.get("vertex"):
        chosen["vertex"] = read_name(str(texts["vertex"]), "vertex")
    if texts.get("up_to"):
        chosen["up_to"] = read_number(str(texts["up_to"]), "up_to", _LARGEST_NUMBER)
    return LetterFilter(**chosen)


def read_order(fields: Mapping[str, Any]) -> bool:
    """Returns whether a list begins with the newest letter, as it does unless asked otherwise."""
    order = fields.get("order") or "newest"
    if order not in ("newest", "oldest"):
        raise Refusal(400, "order must be newest or oldest")
    return bool(order == "newest")


def _text(value: object, name: str) -> str:
    """Returns a field as text, which is empty if there is none."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Refusal(400, f"{name} must be text")
    return str(value)


def read_choice(body: Mapping[str, Any]) -> LetterFilter | Sequence[int]:
    """Returns the letters that a body means: ``numbers``, or those that match a ``filter``."""
    if ("numbers" in body) == ("filter" in body):
        raise Refusal(
            400,
            "name the letters by numbers, or by a filter",
            next_step='Send {"numbers": [1, 2]}, or {"filter": {}} for all of them.',
        )
    if "filter" in body:
        return _read_filter_object(body["filter"])
    numbers = body["numbers"]
    is_list = isinstance(numbers, list) and 0 < len(numbers) <= _MOST_NUMBERS
    if not is_list or not all(map(_is_number, numbers)):
        raise Refusal(400, f"numbers must be a list of 1 to {_MOST_NUMBERS:,} whole numbers")
    return sorted(set(numbers))


def _read_filter_object(value: object) -> LetterFilter:
    """A misspelt field would choose more letters than were meant, so it is refused."""
    if not isinstance(value, dict):
        raise Refusal(400, "filter must be an object")
    if unknown := value.keys() - _FIELDS:
        known = ", ".join(sorted(_FIELDS))
        raise Refusal(
            400, f"a filter has no {sorted(unknown)[0][:40]!r}", next_step=f"Use {known}."
        )
    return read_filter(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LARGEST_NUMBER


def read_edit(body: Mapping[str, Any]) -> LetterEdit | None:
    """Returns how a body changes a letter: a value, keys, headers; ``None`` if it does not."""
    if not body.keys() & {"value", "keys", "headers"}:
        return None
    numbers = body.get("numbers")
    if not isinstance(numbers, list) or len(numbers) != 1:
        raise Refusal(400, "only one letter can be edited at a time; name its number")
    return LetterEdit(
        value=_read_value(body["value"]) if body.get("value") is not None else None,
        keys=_read_keys(body["keys"]) if body.get("keys") is not None else None,
        headers=_read_headers(body["headers"]) if body.get("headers") is not None else None,
    )


def _read_value(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"]).encode()
    if isinstance(value, dict) and isinstance(value.get("base64"), str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise Refusal(400, "the value is not base64") from None
    raise Refusal(400, 'the value must be text, {"text": …} or {"base64": …}')


def _read_keys(value: object) -> list[str]:
    if isinstance(value, list) and all(isinstance(key, str) for key in value):
        return value
    raise Refusal(400, "keys must be a list of texts")


def _read_headers(value: object) -> dict[str, str]:
    if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return value
    raise Refusal(400, "headers must be an object of texts")


def read_rate(body: Mapping[str, Any]) -> float | None:
    """Returns the most letters a second that a body asks for, if it does."""
    rate = body.get("rate")
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1e9:
        raise Refusal(400, "rate must be a number of letters a second, more than 0")
    return float(rate)


def read_flag(body: Mapping[str, Any], name: str) -> bool:
    """Returns a field that is true or false; false if it is missing."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise Refusal(400, f"{name} must be true or false")
    return value
