"""A folder with user code, where targets are looked up."""

from __future__ import annotations

from tests.spec.linting import folder

__all__ = ["folder"]
