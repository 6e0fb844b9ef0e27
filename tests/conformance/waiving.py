"""Which sources are tried with the rules about 42,000 messages that wait, the dearest by far.

Of two sources that read in the same way, one is. Others are when long tests are asked for: what
stops them is the same window, which is always tried with a queue of a user's own.
"""

from __future__ import annotations

from typing import Any

import pytest

from ebbflow.testing import SOURCE_RULES
from tests.long_tests import SKIPPED_BECAUSE, are_long_tests_wanted

_BLOCKED = ("a_blocked_pipeline_stops_reading", "a_blocked_pipeline_loses_nothing")

RULES_FLOODED_WHEN_ASKED: list[Any] = [
    pytest.param(rule, marks=pytest.mark.long) if rule.__name__ in _BLOCKED else rule
    for rule in SOURCE_RULES
]
"""The rules of sources, for those that are flooded only when long tests are asked for."""


def blocked_elsewhere(other: str) -> dict[str, str]:
    """Waives the rules because another source is tried with them."""
    return dict.fromkeys(_BLOCKED, f"it reads as {other} does, which is tried with them")


def blocked_when_asked() -> dict[str, str]:
    """Waives the rules unless long tests are asked for."""
    return {} if are_long_tests_wanted() else dict.fromkeys(_BLOCKED, SKIPPED_BECAUSE)
