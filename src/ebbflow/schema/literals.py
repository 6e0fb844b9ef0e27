"""The words that a spec chooses from, as types.

Apart from the model, so that the Python builders can use them without importing pydantic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ebbflow.core.routing import TagOperator as TagOperator

Code = str | Callable[..., Any]
"""User code: the function or class itself, or ``"module:attribute"``."""

OnFull = Literal["retryUntilSuccess", "discardLatest"]
"""What happens to a message when the buffer it is to go to is full: it waits, or is dropped."""

OnFailure = Literal["retry", "fallback", "drop"]
"""What happens when the steps of a back-off are used up."""

Mode = Literal["unary", "batch", "stream", "columnar", "pandas"]
"""What a map is given at a time, and how it answers."""

SinkMode = Literal["batch", "columnar", "pandas"]
"""What a sink is given at a time, and how it answers."""

Phase = Literal["Running", "Paused"]
"""What a pipeline is to do."""
