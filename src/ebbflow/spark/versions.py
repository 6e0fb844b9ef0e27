"""The versions of PySpark that Ebbflow runs on, and the differences between them.

Clusters choose their own Spark, so every version from ``OLDEST`` on works, up to ``BELOW``, which
is not tested yet. Only the data source needs a newer version: earlier ones cannot limit how much a
Python source reads in a micro-batch.
"""

from __future__ import annotations

import re

OLDEST, BELOW = (4, 0), (4, 4)
DATA_SOURCE_NEEDS = (4, 2)
# Spark's message when a Python worker has died; the same in 4.0 to 4.3.
_WORKER_DIED = re.compile(r"Python worker exited unexpectedly")


def installed() -> tuple[int, ...]:
    """Returns the version of PySpark as numbers, such as ``(4, 3, 0)``."""
    from pyspark import __version__

    return tuple(int(number) for number in re.findall(r"\d+", __version__)[:3])


def dotted(numbers: tuple[int, ...]) -> str:
    """Returns a version as people write it."""
    return ".".join(map(str, numbers))


def has_data_source() -> bool:
    """Returns whether ``ebbflow.datasource`` works on this version."""
    return installed() >= DATA_SOURCE_NEEDS


def require_data_source() -> None:
    """Raises ``ImportError`` on a version that ``ebbflow.datasource`` does not work on."""
    if not has_data_source():
        needed = dotted(DATA_SOURCE_NEEDS)
        raise ImportError(
            f"ebbflow.datasource needs PySpark {needed} or newer, and {dotted(installed())} is "
            f'installed. Pipelines run on it; for format("jetstream") run: '
            f"pip install 'pyspark>={needed},<{dotted(BELOW)}'"
        )


def says_worker_died(text: str) -> bool:
    """Returns whether the text of Spark's error reports that a Python worker has died."""
    return _WORKER_DIED.search(text) is not None
