"""The process that Spark's Python workers are forked from, with the slow imports done once.

Spark starts it as ``python -m ebbflow.spark.daemon``; every worker inherits what is loaded here.
"""

from __future__ import annotations

import gc

import pandas  # noqa: F401
import pyarrow.compute  # noqa: F401
from pyspark import daemon

import ebbflow.spark.epoch  # noqa: F401

# A chunk makes thousands of small objects that live for a moment. Looking for cycles among them
# every 700 of these costs a fifth of a map's time; what was imported need never be looked at.
_OBJECTS = 100_000

if __name__ == "__main__":
    gc.freeze()
    gc.set_threshold(_OBJECTS)
    daemon.manager()
