"""Pickling with Spark's cloudpickle, which takes along code that other processes cannot import."""

from __future__ import annotations


def pickle_by_value(thing: object) -> bytes:
    """Pickles anything; functions and classes of the user's program go along with their code."""
    from pyspark import cloudpickle

    return bytes(cloudpickle.dumps(thing))  # type: ignore[no-untyped-call]
