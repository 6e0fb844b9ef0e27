"""The log sink: every message becomes one line that ``ebbflow run`` prints."""

from __future__ import annotations

from ebbflow.domain.message import Datum
from ebbflow.engine.verdict import Verdict
from ebbflow.usercode.printing import Emit, Printed, cut

_AT_ONCE = 64 * 1024


def write(verdict: Verdict, emit: Emit, role: str = "sink") -> None:
    """Hands the lines to ``emit``, many at once; it returns when they are on their way.

    A line that is too long is cut, and says so.
    """
    vertex = verdict.rules.vertex
    place = vertex if role == "sink" else f"{vertex}, {role.replace('_', ' ')}"
    lines: list[str] = []
    size = 0
    for datum in verdict.rows.data():
        lines.append(cut(line(place, datum)))
        size += len(lines[-1])
        if size > _AT_ONCE:
            emit(Printed("\n".join(lines), "message"))
            lines, size = [], 0
    if lines:
        emit(Printed("\n".join(lines), "message"))


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
