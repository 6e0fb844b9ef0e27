"""Which worker runs which files: those that need the same dear server have the same worker.

A worker of pytest-xdist starts what its tests need, once. A Kafka broker, a cluster of NATS servers
or the first query of Spark's SQL costs about ten seconds of processor time in each worker, and
servers that wait for work go on costing. So files that need one of them are handed out as one.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

_SQL = (
    "tests/connectors/spark/",
    "tests/datasource/",
    "tests/spark/test_queries.py",
    "tests/conformance/test_spark_connectors.py",
)


class SharedServers(LoadFileScheduling):
    """Hands out whole files, and files with the same server together."""

    def _split_scope(self, nodeid: str) -> str:
        return shared_by(nodeid.split("::", 1)[0])


def shared_by(file: str) -> str:
    """Returns the name of the server that the file needs, or the file itself."""
    if "kafka" in file:
        return "kafka"
    if file.startswith("tests/cluster/"):
        return "cluster"
    if file.startswith(_SQL):
        return "sql"
    return file
