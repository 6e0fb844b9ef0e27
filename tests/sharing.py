"""What the workers of pytest-xdist share: files that need the same server, and compiled modules.

A worker starts what its tests need, once. A Kafka broker, a cluster of NATS servers or the first
query of Spark's SQL costs about ten seconds of processor time in each worker, and servers that wait
for work continue to cost. So files that need one of them are distributed as one.

A session of Spark costs as much, and its first runs are slow until the JVM has compiled its code.
Too many files need one for a single worker, so two thirds of the workers take these files first.
The others take the rest first and start a session only when nothing else is left.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_SQL = (
    "tests/connectors/spark/",
    "tests/datasource/",
    "tests/examples/test_programs.py",
    "tests/spark/test_audit_engines.py",
    "tests/spark/test_audit_table.py",
    "tests/spark/test_call_timeout.py",
    "tests/spark/test_queries.py",
    "tests/conformance/test_spark_connectors.py",
)
# A file that is missing here costs a JVM, nothing else.
_ON_SPARK = (
    "sql",
    "kafka",
    "postgres",
    "pulsar",
    "tests/spark/",
    "tests/conformance/",
    "tests/cli/test_run_command.py",
    "tests/connectors/file/test_sink.py",
    "tests/connectors/http/test_sink.py",
    "tests/connectors/serving/test_crowd.py",
    "tests/connectors/test_file.py",
    "tests/connectors/user_code/test_source.py",
    "tests/docs/test_numaflow_guide.py",
    "tests/docs/test_serving_guide.py",
    "tests/examples/test_first_program.py",
    "tests/examples/test_serving.py",
    "tests/numaflow/pynumaflow/test_on_spark.py",
    "tests/numaflow/test_documents.py",
    "tests/numaflow/test_sdk_pipelines.py",
    "tests/status/test_running_pipeline.py",
    "tests/ui/test_run_page.py",
)


class SharedServers(LoadFileScheduling):
    """Distributes whole files, and files with the same server together."""

    def _split_scope(self, nodeid: str) -> str:
        return shared_by(nodeid.split("::", 1)[0])

    def _assign_work_unit(self, node: WorkerController) -> None:
        prefers_spark = self.nodes.index(node) < workers_with_spark(len(self.nodes))
        wanted = next_for(list(self.workqueue), prefers_spark=prefers_spark)
        self.workqueue.move_to_end(wanted, last=False)
        super()._assign_work_unit(node)


def shared_by(file: str) -> str:
    """Returns the name of the server that the file needs, or the file itself."""
    for server in ("kafka", "postgres", "pubsub", "pulsar", "sqs"):
        if server in file:
            return server
    if file.startswith("tests/cluster/"):
        return "cluster"
    if file.startswith(_SQL):
        return "sql"
    return file


def workers_with_spark(workers: int) -> int:
    """Returns two thirds of the workers, rounded up: they can help the others without a new JVM."""
    return (2 * workers + 2) // 3


def next_for(waiting: Sequence[str], *, prefers_spark: bool) -> str:
    """Returns the first of these scopes that suits a worker, or the first if none does."""
    suitable = (scope for scope in waiting if _needs_spark(scope) is prefers_spark)
    return next(suitable, waiting[0])


def _needs_spark(scope: str) -> bool:
    return scope.startswith(_ON_SPARK) or scope.endswith("_runs.py")


def import_own_share_first(config: pytest.Config) -> None:
    """Compiles a part of the tests that no other worker compiles, before all of them are collected.

    Nothing is compiled in a fresh clone. If all workers imported the files in the same order, each
    would compile most of them, which is most of the work of collecting. So each begins at another
    place, and by the time it reaches the part of another worker, that part is compiled.
    """
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted((config.rootpath / "tests").rglob("test_*.py"))
    worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    start = len(files) * worker // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for file in files[start:] + files[:start]:
        _import(file.relative_to(config.rootpath))


def _import(file: Path) -> None:
    """Ignores failed imports and skips: the collection reports them."""
    with contextlib.suppress(Exception, pytest.skip.Exception):
        importlib.import_module(".".join(file.with_suffix("").parts))
