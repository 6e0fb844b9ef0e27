"""What the tests of the page share."""

from __future__ import annotations

from tests.ui.browser import browser

__all__ = ["browser"]
