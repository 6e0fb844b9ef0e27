"""Suggests the name that someone probably meant: the closest of the right ones."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Returns the candidate most like ``name``, or ``None`` when none is close."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, candidates: Iterable[str], otherwise: str) -> str:
    """Returns the end of an error message: the nearest name, or else every name there is."""
    names = list(candidates)
    close = nearest(name, names)
    if close is not None:
        return f"did you mean {close!r}?"
    return f"{otherwise} {', '.join(names)}" if names else f"{otherwise} none"
