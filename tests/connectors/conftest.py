"""Lint, as tests of connectors in a spec ask for it."""

from __future__ import annotations

from tests.spec.linting import folder, problems_of

__all__ = ["folder", "problems_of"]
