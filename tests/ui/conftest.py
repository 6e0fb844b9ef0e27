"""What the tests of the web UI share."""

from __future__ import annotations

from tests.ui.browser import browser

__all__ = ["browser"]
