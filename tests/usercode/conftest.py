"""A folder with user code in it, where targets are looked for."""

from __future__ import annotations

from tests.spec.linting import folder

__all__ = ["folder"]
