"""Rules that one of two sources is tried with, because both read in the same way."""

from __future__ import annotations


def blocked_elsewhere(other: str) -> dict[str, str]:
    """Waives the rules about 42,000 messages that wait, the dearest ones by far."""
    reason = f"it reads as {other} does, which is tried with them"
    return dict.fromkeys(
        ("a_blocked_pipeline_stops_reading", "a_blocked_pipeline_loses_nothing"), reason
    )
