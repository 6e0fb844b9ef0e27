"""An epoch: one Spark job that runs the resident tasks of a vertex for a while.

``run_epoch`` is the driver's side and blocks until every task of the vertex has returned.
``_tasks`` is the workers' side: Spark calls it once per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, assert_never

import pyarrow as pa
from pyspark import TaskContext

from ebbflow.core.verdict import Verdict
from ebbflow.functions import run_map, run_sink
from ebbflow.sinks import blackhole, log
from ebbflow.spark.careful import Careful
from ebbflow.spark.events import Events
from ebbflow.spark.handlers import (
    close_handler,
    close_others,
    forget_handlers,
    handler_for,
)
from ebbflow.spark.plan import BlackholeSink, Forward, LogSink, UserMap, UserSink, VertexPlan
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
    close_others(plan.pipeline, plan.vertex)
    task = VertexTask(plan, partition, seconds)
    with task.events.printing():
        report = task.run(operator_for(plan, task.events, careful))
    if report.ended == "stop":
        close_handler(plan.pipeline, plan.vertex)
    return report


def operator_for(plan: VertexPlan, events: Events, careful: bool) -> Callable[[Verdict], None]:
    """What the vertex does with a chunk."""
    match plan.role:
        case UserMap() | UserSink():
            user = _user_operator(plan)
            return Careful(user, partial(_fresh_operator, plan)) if careful else user
        case LogSink():
            return partial(log.write, emit=events.log)
        case BlackholeSink():
            return blackhole.write
        case Forward():
            return Verdict.forward_inputs
        case never:
            assert_never(never)


def _user_operator(plan: VertexPlan) -> Callable[[Verdict], None]:
    assert isinstance(plan.role, UserMap | UserSink)
    handler = handler_for(plan.pipeline, plan.vertex, plan.role.code, plan.search)
    if isinstance(plan.role, UserMap):
        return partial(run_map, handler, concurrency=plan.concurrency)
    return partial(run_sink, handler, batch_size=plan.batch_size)


def _fresh_operator(plan: VertexPlan) -> Callable[[Verdict], None]:
    forget_handlers()
    return _user_operator(plan)
