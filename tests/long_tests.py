"""Tests that take long: they show at full length what shorter ones show of each part.

``make long`` runs them, and so does ``EBBFLOW_TEST_LONG=1``. Otherwise they are skipped, and the
summary says so: everything that is tested has to fit into ten minutes on two cores. Tests of
functions that a compiler has to build first are among them, without being marked one by one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

_COMPILED = frozenset({"go", "rust", "java"})
SKIPPED_BECAUSE = "takes long; make long runs it, or EBBFLOW_TEST_LONG=1"


def are_long_tests_wanted() -> bool:
    """Returns whether tests that take long are wanted."""
    return bool(os.environ.get("EBBFLOW_TEST_LONG"))


def skip_long_tests(items: Iterable[pytest.Item]) -> None:
    """Leaves out tests that are marked as long, unless long tests are wanted."""
    for item in items:
        if _compiled_in(item):
            item.add_marker(pytest.mark.long)
    if are_long_tests_wanted():
        return
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.skip(reason=SKIPPED_BECAUSE))


def languages_to_compile(items: Iterable[pytest.Item]) -> list[str]:
    """Returns the languages with a compiler in which tests that are not skipped want functions."""
    wanted = [item for item in items if item.get_closest_marker("skip") is None]
    compiled = {language for item in wanted for language in _compiled_in(item)}
    servers = {"pstest" for item in wanted if "pubsub_server" in getattr(item, "fixturenames", ())}
    return sorted(compiled | servers)


def _compiled_in(item: pytest.Item) -> set[str]:
    """Returns the languages with a compiler that its parameters ask for functions in."""
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    wants_functions = "function_in" in getattr(item, "fixturenames", ())
    named = {value for value in parameters if isinstance(value, str)}
    return named & _COMPILED if wants_functions else set()
