"""Which sources are tried with the rules about 42,000 waiting messages, by far the slowest rules.

Of two sources that read in the same way, only one is tried with them. Others are tried when long
tests are requested: the same limit stops them, and a user's own queue always tests it.
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
"""The rules of sources, for those that are flooded only when long tests are requested."""


def blocked_elsewhere(other: str) -> dict[str, str]:
    """Waive the rules because another source is tried with them."""
    return dict.fromkeys(_BLOCKED, f"it reads as {other} does, which is tried with them")


def blocked_when_asked() -> dict[str, str]:
    """Waive the rules unless long tests are requested."""
    return {} if are_long_tests_wanted() else dict.fromkeys(_BLOCKED, SKIPPED_BECAUSE)
