"""The same pipeline on a real Spark cluster: a standalone master and worker on this machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Whole
from tests.standalone import SparkCluster, await_text, quick_java

# Many JVMs are started, one after another.
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A cluster with four slots, two on each of its Workers."""
    made = SparkCluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.add_workers(2, 2)
        yield made
    finally:
        made.close()


class OnCluster:
    """A run whose cluster loses a worker and gains another, with epochs of ten minutes.

    Epochs that are running must end early, or some vertex would wait for its slot.
    """

    def __init__(self, whole: Whole, cluster: SparkCluster) -> None:
        self.whole = whole
        log = whole.folder / "output.log"
        process = whole.start(
            *("--epoch", "10m", "--timeout", "400s", "--master", cluster.url, "--plain"),
            *("--conf", f"spark.executor.extraJavaOptions={quick_java()}"),
            log=log,
        )
        whole.wait_until(lambda: len(whole.stored()) > 100, process)
        start = len(log.read_text())  # on a slow machine executors may have started one by one
        cluster.lose_a_worker()
        await_text(log, "3 tasks have only 2 slots, so vertices take turns of 2 s", start)
        for _ in range(2):  # every vertex has its turn, and another one
            before = len(whole.stored())
            whole.wait_until(lambda n=before: len(whole.stored()) > n, process)
        start = len(log.read_text())
        cluster.add_workers(2)
        await_text(log, "all 3 tasks have slots again", start)
        process.send_signal(signal.SIGTERM)
        self.code = process.wait(120)
        self.output = log.read_text()


@pytest.fixture(scope="module")
def ended(cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnCluster]:
    whole = Whole(tmp_path_factory.mktemp("on-cluster"))
    whole.write({"rpu": 100}, inline=False)
    try:
        yield OnCluster(whole, cluster)
    finally:
        whole.close()


def test_a_pipeline_on_a_cluster_uses_the_modules_next_to_its_spec(ended):
    assert ended.code == 0, ended.output
    assert "cannot reach" not in ended.output, "all executors are on this machine"


@pytest.mark.guarantee("a-run-goes-on")
def test_a_lost_worker_is_reported_and_vertices_take_turns_until_it_is_replaced(ended):
    stored = ended.whole.stored()
    assert set(stored) == set(range(max(stored) + 1)), "nothing is missing"
