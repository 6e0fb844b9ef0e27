"""The fixtures with which tests of connectors lint a spec."""

from __future__ import annotations

from tests.spec.linting import folder, problems_of

__all__ = ["folder", "problems_of"]
