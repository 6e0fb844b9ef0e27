"""A secret as a value: usable and picklable, but shown in no text."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Secret:
    """A password, token or key. ``reveal`` is the one way to get at it."""

    _value: str = field(repr=False)

    def reveal(self) -> str:
        """Returns the secret itself."""
        return self._value

    def __str__(self) -> str:
        return "(secret)"
