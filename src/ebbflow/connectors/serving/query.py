"""What a request says in its address: the id of a request, and how long to wait."""

from __future__ import annotations

import math
import re

from ebbflow.connectors.serving.envelope import check_request_id
from ebbflow.web.connection import RequestHead
from ebbflow.web.query import read_query
from ebbflow.web.refusal import Refusal

_NUMBER = re.compile(r"\d{1,18}")


def read_id(head: RequestHead) -> str:
    """Returns the id that the address asks for; ``Refusal`` if it names none."""
    query = read_query(head)
    if "id" not in query:
        raise Refusal(400, "name the request with ?id=")
    return check_request_id(query["id"], "id")


def read_timeout(head: RequestHead) -> float | None:
    """Returns the seconds that a caller wants to wait, if it says so."""
    if b"?" not in head.target:
        return None
    text = read_query(head).get("timeout")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise Refusal(400, "timeout must be a number of seconds, more than 0")
    return seconds


def read_last_event(head: RequestHead) -> int:
    """Returns the id of the last event that a client has seen, less than any other if none."""
    text = next((text for name, text in head.headers if name == b"last-event-id"), b"")
    if not text:
        return -1
    if _NUMBER.fullmatch(text.decode("latin-1")) is None:
        raise Refusal(400, "last-event-id is no id of an event")
    return int(text)
