"""The serve sink: the value of every message is an answer to the request that it came from."""

from __future__ import annotations

from ebbflow.engine.verdict import Verdict


def write(verdict: Verdict) -> None:
    """Leaves all values to the serving store, which decides about the messages."""
    verdict.decisions.serve_all(verdict.rows.column("value"))
