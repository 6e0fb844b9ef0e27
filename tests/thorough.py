"""How many examples a property test tries: more with ``--hypothesis-profile thorough``."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_USUAL, _THOROUGH = 40, 1_000


def register_profiles() -> None:
    """Failures can be reproduced, and no example fails because the machine is busy."""
    for name, examples_tried in (("ebbflow", _USUAL), ("thorough", _THOROUGH)):
        settings.register_profile(
            name,
            print_blob=True,
            deadline=None,
            max_examples=examples_tried,
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile("ebbflow")


def examples(number: int, thorough: int | None = None) -> int:
    """Two fifths of this many examples usually, ten times as many in a thorough run.

    ``thorough`` is how many a thorough run tries, if that is another number.
    """
    tried = settings.default.max_examples
    if thorough is not None and tried == _THOROUGH:
        return thorough
    return max(1, number * tried // 100)
