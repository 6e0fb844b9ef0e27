"""An epoch: one Spark job that runs the resident tasks of a vertex for a while.

``run_epoch`` is the driver's side and blocks until every task of the vertex has returned.
``_tasks`` is the workers' side: Spark calls it once per partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from ebbflow.spark.handlers import close_handlers, close_others
from ebbflow.spark.operators import operator_for, set_environment
from ebbflow.spark.plan import VertexPlan
from ebbflow.spark.task import Report, VertexTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA = "partition int, ended string, chunks long, rows long"


def run_epoch(
    spark: SparkSession, plan: VertexPlan, epoch: int, seconds: float, careful: bool = False
) -> dict[int, Report]:
    """Run all tasks of the vertex once. Called from the vertex's own driver thread."""
    context = spark.sparkContext
    context.setJobGroup(f"ebbflow/{plan.pipeline}/{plan.vertex}", f"{plan.vertex}, epoch {epoch}")
    tasks = spark.range(0, plan.partitions, 1, plan.partitions)
    work = partial(_tasks, plan=plan, seconds=seconds, careful=careful)
    rows = tasks.mapInArrow(work, _SCHEMA).collect()
    return {row.partition: Report(row.ended, row.chunks, row.rows) for row in rows}


def _tasks(
    batches: Iterator[pa.RecordBatch], plan: VertexPlan, seconds: float, careful: bool
) -> Iterator[pa.RecordBatch]:
    # Spark itself may have started this task again, after its first worker was lost.
    context = TaskContext.get()
    again = context is not None and context.attemptNumber() > 0
    for batch in batches:
        for partition in batch.column(0).to_pylist():
            report = run_partition(plan, partition, seconds, careful or again)
            yield pa.RecordBatch.from_pydict(
                {
                    "partition": pa.array([partition], pa.int32()),
                    "ended": [report.ended],
                    "chunks": [report.chunks],
                    "rows": [report.rows],
                }
            )


def run_partition(
    plan: VertexPlan, partition: int, seconds: float, careful: bool = False
) -> Report:
    """One task, on a worker. User code stays open for the next epoch unless this was the last."""
    close_others(plan.whose)
    set_environment(plan, partition)
    task = VertexTask(plan, partition, seconds)
    with task.events.printing():
        report = task.run(operator_for(plan, task.events.log, careful))
    if report.ended == "stop":
        close_handlers(plan.whose)
    return report
