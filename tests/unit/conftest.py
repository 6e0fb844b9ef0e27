"""Hypothesis for the whole folder: reproducible failures, no deadlines on a busy machine."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "unit",
    print_blob=True,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unit")
