"""An epoch: one Spark job that runs the resident tasks of a vertex for a while.

``Epochs`` is the driver's side; an epoch is over when every task of the vertex has returned.
``_tasks`` is the workers' side: Spark calls it once per partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyspark import TaskContext

from ebbflow.accounts.traces import flush_spans
from ebbflow.runtime.nats_task import VertexTask
from ebbflow.runtime.operators import UserCode, set_environment
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.ports import Report
from ebbflow.runtime.worker import WORKER
from ebbflow.usercode.call_watch import watch_calls
from ebbflow.usercode.poison import end_worker_on_base_exception
from ebbflow.usercode.printing import redirected

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession


class Epochs:
    """The epochs of one vertex, one after another. Used from the vertex's own driver thread.

    A job of Spark's without SQL: a first DataFrame would cost every start a second of work. What is
    made for an epoch is used again for the next of the same length.
    """

    def __init__(self, spark: SparkSession, plan: VertexPlan) -> None:
        self._spark = spark
        self._plan = plan
        self._made: dict[tuple[float, bool], RDD[tuple[int, Report]]] = {}

    def run(self, epoch: int, seconds: float, isolate: bool = False) -> dict[int, Report]:
        """Runs all tasks of the vertex once and returns their reports by partition."""
        pipeline, vertex = self._plan.pipeline, self._plan.vertex
        context = self._spark.sparkContext
        context.setJobGroup(f"ebbflow/{pipeline}/{vertex}", f"{vertex}, epoch {epoch}")
        kind = (seconds, isolate)
        if kind not in self._made:
            self._made[kind] = self._tasks(seconds, isolate)
        return dict(self._made[kind].collect())

    def _tasks(self, seconds: float, isolate: bool) -> RDD[tuple[int, Report]]:
        partitions = self._plan.partitions
        work = partial(_tasks, plan=self._plan, seconds=seconds, isolate=isolate)
        numbers = self._spark.sparkContext.parallelize(range(partitions), partitions)
        return numbers.mapPartitions(work)


def _tasks(
    partitions: Iterator[int], plan: VertexPlan, seconds: float, isolate: bool
) -> Iterator[tuple[int, Report]]:
    # Spark itself may have started this task again, after its first worker was lost.
    context = TaskContext.get()
    again = context is not None and context.attemptNumber() > 0
    for partition in partitions:
        yield partition, run_partition(plan, partition, seconds, isolate or again)


def run_partition(
    plan: VertexPlan, partition: int, seconds: float, isolate: bool = False
) -> Report:
    """Runs one task on a worker; user code stays open unless this was the last epoch."""
    WORKER.close_other_runs(plan.run.id)
    set_environment(plan, partition)
    task = VertexTask(plan, partition, seconds)
    code = UserCode(plan, task.events.log, isolate)
    inline = [UserCode(other.plan, other.events.log, isolate) for other in task.inline]
    watch = watch_calls(plan.calls.timeout, lambda seconds: task.speaker.events.in_call(seconds))
    with redirected(task.speaker.log), end_worker_on_base_exception(), watch:
        try:
            report = task.run(code, inline)
        finally:
            for one in (code, *inline):
                one.close()
    if report.ended == "stop":
        WORKER.close_run(plan.run.id)
        if plan.run.traces:
            flush_spans()
    return report
