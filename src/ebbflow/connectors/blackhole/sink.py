"""The blackhole sink: every message is done and forgotten."""

from __future__ import annotations

from ebbflow.engine.verdict import Verdict


def write(verdict: Verdict) -> None:
    """Leaves the verdict as it is: what has no outcome of its own is done."""
