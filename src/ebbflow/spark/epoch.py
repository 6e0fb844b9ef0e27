"""An epoch: one Spark job that runs the resident tasks of one or more vertices for a while.

``Epochs`` is the driver's side; an epoch is over when all its tasks have returned. ``_tasks`` is
the workers' side, which Spark calls once per partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark import TaskContext

from ebbflow.accounts.traces import flush_spans
from ebbflow.runtime.nats_task import SharedTask, VertexTask
from ebbflow.runtime.operators import CurrentVertex, UserCode, vertex_variables
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
    """The epochs of vertices that share a task, one after another. Used from one driver thread.

    They do not use SQL, because the first DataFrame would add a second to every start. An epoch
    reuses the RDD of an earlier one of the same length.
    """

    def __init__(self, spark: SparkSession, plans: Sequence[VertexPlan]) -> None:
        self._spark = spark
        self._plans = plans
        self._made: dict[tuple[float, bool], RDD[tuple[int, Report]]] = {}

    def run(self, epoch: int, seconds: float, isolate: bool = False) -> dict[int, Report]:
        """Runs all tasks of the vertices once and returns their reports by partition."""
        first, names = self._plans[0], ", ".join(plan.vertex for plan in self._plans)
        context = self._spark.sparkContext
        context.setJobGroup(f"ebbflow/{first.pipeline}/{first.vertex}", f"{names}, epoch {epoch}")
        kind = (seconds, isolate)
        if kind not in self._made:
            self._made[kind] = self._tasks(seconds, isolate)
        return dict(self._made[kind].collect())

    def _tasks(self, seconds: float, isolate: bool) -> RDD[tuple[int, Report]]:
        partitions = self._plans[0].partitions
        work = partial(_tasks, plans=self._plans, seconds=seconds, isolate=isolate)
        numbers = self._spark.sparkContext.parallelize(range(partitions), partitions)
        return numbers.mapPartitions(work)


def _tasks(
    partitions: Iterator[int], plans: Sequence[VertexPlan], seconds: float, isolate: bool
) -> Iterator[tuple[int, Report]]:
    # Spark itself restarts a task whose first worker was lost.
    context = TaskContext.get()
    retried = context is not None and context.attemptNumber() > 0
    for partition in partitions:
        yield partition, run_partition(plans, partition, seconds, isolate or retried)


def run_partition(
    plans: Sequence[VertexPlan], partition: int, seconds: float, isolate: bool = False
) -> Report:
    """Runs one task on a worker; user code stays open unless this was the last epoch."""
    run, timeout = plans[0].run, plans[0].calls.timeout
    WORKER.close_other_runs(run.id)
    WORKER.keep_in_task([plan.vertex_of_run for plan in plans], partition)
    task, speaker = SharedTask(plans, partition, seconds), CurrentVertex()
    codes = [_open_code(vertex, partition, speaker, isolate, plans) for vertex in task.vertices]
    watch = watch_calls(timeout, speaker.in_call)
    with redirected(speaker.log), end_worker_on_base_exception(), watch:
        try:
            report = task.run(codes)
        finally:
            for code in codes:
                code.close()
    if report.ended == "stop":
        WORKER.close_run(run.id)
        if run.traces:
            flush_spans()
    return report


def _open_code(
    vertex: VertexTask,
    partition: int,
    speaker: CurrentVertex,
    isolate: bool,
    plans: Sequence[VertexPlan],
) -> UserCode:
    """Returns the user code of a vertex; during its calls the process reports for that vertex."""
    enter = partial(speaker.report_for, vertex.events, vertex_variables(vertex.plan, partition))
    enter()
    return UserCode(
        vertex.plan, vertex.events.log, isolate, enter=enter if len(plans) > 1 else None
    )
