"""The process that Spark's Python workers are forked from, with the slow imports done once.

Spark starts it as ``python -m ebbflow.spark.daemon`` when the first task needs a worker; every
worker inherits what is loaded here. See ``ahead`` for how the loading is done before that.
A worker's line to Spark is its own: see ``descriptors``.
"""

from __future__ import annotations

import gc
import socket

# A chunk makes thousands of small objects that live for a moment. Looking for cycles among them
# every 700 of these costs a fifth of a map's time; what was imported need never be looked at.
_OBJECTS = 100_000


def load() -> None:
    """Import what every worker needs."""
    import pandas  # noqa: F401 - Arrow looks for it in any case
    import pyarrow.compute  # noqa: F401
    import pyspark.worker  # noqa: F401

    import ebbflow.spark.epoch  # noqa: F401

    gc.freeze()
    gc.set_threshold(_OBJECTS)


def serve() -> None:
    """Fork workers for as long as Spark wants any."""
    from pyspark import daemon

    from ebbflow.runtime.descriptors import keep_private

    work = daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        keep_private(sock.fileno())
        return work(sock, authenticated)

    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    from ebbflow.spark.preload import handed_over

    if not handed_over():
        load()
        serve()
