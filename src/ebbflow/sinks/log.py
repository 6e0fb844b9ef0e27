"""The log sink: every message becomes one line that ``ebbflow run`` prints."""

from __future__ import annotations

from collections.abc import Callable

from ebbflow.core.verdict import Verdict
from ebbflow.message import Datum

_LINES_AT_ONCE = 500


def write(verdict: Verdict, emit: Callable[[str], None], role: str = "sink") -> None:
    """Hand the lines to ``emit``, many at once; it returns when they are on their way."""
    place = verdict.vertex if role == "sink" else f"{verdict.vertex}, {role.replace('_', ' ')}"
    lines = [line(place, datum) for datum in verdict.rows.data()]
    for start in range(0, len(lines), _LINES_AT_ONCE):
        emit("\n".join(lines[start : start + _LINES_AT_ONCE]))


def line(place: str, datum: Datum) -> str:
    """One message on one line; bytes that are no text are shown escaped."""
    payload = datum.value.decode("utf-8", "backslashreplace").replace("\n", "\\n")
    facts = [f"({place})", f"id={datum.id}", f"payload={payload}"]
    if datum.keys:
        facts.append(f"keys={','.join(datum.keys)}")
    if datum.event_time is not None:
        facts.append(f"event_time={datum.event_time.isoformat(timespec='milliseconds')}")
    if datum.headers:
        facts.append(f"headers={datum.headers}")
    return " ".join(facts)
