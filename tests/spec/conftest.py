"""Fixtures that lint a spec."""

from __future__ import annotations

from tests.spec.linting import folder, problems_of

__all__ = ["folder", "problems_of"]
