"""An epoch: one Spark job that runs the resident tasks of a vertex for a while.

``Epochs`` is the driver's side; an epoch is over when every task of the vertex has returned.
``_tasks`` is the workers' side: Spark calls it once per partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from ebbflow.runtime.call_watch import watch_calls
from ebbflow.runtime.handlers import close_other_runs, close_run
from ebbflow.runtime.journal import Report
from ebbflow.runtime.nats_task import VertexTask
from ebbflow.runtime.operators import UserCode, set_environment
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.poison import end_worker_on_base_exception

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = "partition int, ended string, chunks long, rows long"


class Epochs:
    """The epochs of one vertex, one after another. Used from the vertex's own driver thread.

    What Spark has planned for an epoch it runs again for the next of the same length: planning
    would be half of the gap between two epochs.
    """

    def __init__(self, spark: SparkSession, plan: VertexPlan) -> None:
        self._spark = spark
        self._plan = plan
        self._planned: dict[tuple[float, bool], DataFrame] = {}

    def run(self, epoch: int, seconds: float, isolate: bool = False) -> dict[int, Report]:
        """Runs all tasks of the vertex once and returns their reports by partition."""
        pipeline, vertex = self._plan.pipeline, self._plan.vertex
        context = self._spark.sparkContext
        context.setJobGroup(f"ebbflow/{pipeline}/{vertex}", f"{vertex}, epoch {epoch}")
        kind = (seconds, isolate)
        if kind not in self._planned:
            self._planned[kind] = self._tasks(seconds, isolate)
        rows = self._planned[kind].collect()
        return {row.partition: Report(row.ended, row.chunks, row.rows) for row in rows}

    def _tasks(self, seconds: float, isolate: bool) -> DataFrame:
        partitions = self._plan.partitions
        work = partial(_tasks, plan=self._plan, seconds=seconds, isolate=isolate)
        return self._spark.range(0, partitions, 1, partitions).mapInArrow(work, _SCHEMA)


def _tasks(
    batches: Iterator[pa.RecordBatch], plan: VertexPlan, seconds: float, isolate: bool
) -> Iterator[pa.RecordBatch]:
    # Spark itself may have started this task again, after its first worker was lost.
    context = TaskContext.get()
    again = context is not None and context.attemptNumber() > 0
    for batch in batches:
        for partition in batch.column(0).to_pylist():
            report = run_partition(plan, partition, seconds, isolate or again)
            yield pa.RecordBatch.from_pydict(
                {
                    "partition": pa.array([partition], pa.int32()),
                    "ended": [report.ended],
                    "chunks": [report.chunks],
                    "rows": [report.rows],
                }
            )


def run_partition(
    plan: VertexPlan, partition: int, seconds: float, isolate: bool = False
) -> Report:
    """Runs one task on a worker; user code stays open unless this was the last epoch."""
    close_other_runs(plan.run)
    set_environment(plan, partition)
    task = VertexTask(plan, partition, seconds)
    code = UserCode(plan, task.events.log, isolate)
    watch = watch_calls(plan.call_timeout, task.events.in_call)
    with task.events.printing(), end_worker_on_base_exception(), watch:
        try:
            report = task.run(code)
        finally:
            code.close()
    if report.ended == "stop":
        close_run(plan.run)
    return report
