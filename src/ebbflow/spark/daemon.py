"""The process that Spark's Python workers are forked from, with the slow imports done once.

Spark starts it as ``python -m ebbflow.spark.daemon``; every worker inherits what is loaded here.
"""

from __future__ import annotations

import pandas  # noqa: F401
import pyarrow.compute  # noqa: F401
from pyspark import daemon

import ebbflow.spark.epoch  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
