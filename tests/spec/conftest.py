"""Lint, as tests of specs ask for it."""

from __future__ import annotations

from tests.spec.linting import folder, problems_of

__all__ = ["folder", "problems_of"]
