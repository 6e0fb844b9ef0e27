"""An epoch: one Spark job that runs the resident tasks of a vertex for a while.

``run_epoch`` is the driver's side and blocks until every task of the vertex has returned.
``_tasks`` is the workers' side: Spark calls it once per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, assert_never

import pyarrow as pa

from ebbflow.core.verdict import Verdict
from ebbflow.functions import Handler, run_map, run_sink
from ebbflow.sinks import blackhole, log
from ebbflow.spark.events import Events
from ebbflow.spark.handlers import close_handler, handler_for
from ebbflow.spark.plan import BlackholeSink, Code, Forward, LogSink, UserMap, UserSink, VertexPlan
from ebbflow.spark.task import Report, VertexTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA = "partition int, ended string, chunks long, rows long"


def run_epoch(
    spark: SparkSession, plan: VertexPlan, epoch: int, seconds: float
) -> dict[int, Report]:
    """Run all tasks of the vertex once. Called from the vertex's own driver thread."""
    context = spark.sparkContext
    context.setJobGroup(f"ebbflow/{plan.pipeline}/{plan.vertex}", f"{plan.vertex}, epoch {epoch}")
    tasks = spark.range(0, plan.partitions, 1, plan.partitions)
    rows = tasks.mapInArrow(partial(_tasks, plan=plan, seconds=seconds), _SCHEMA).collect()
    return {row.partition: Report(row.ended, row.chunks, row.rows) for row in rows}


def _tasks(
    batches: Iterator[pa.RecordBatch], plan: VertexPlan, seconds: float
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for partition in batch.column(0).to_pylist():
            report = run_partition(plan, partition, seconds)
            yield pa.RecordBatch.from_pydict(
                {
                    "partition": pa.array([partition], pa.int32()),
                    "ended": [report.ended],
                    "chunks": [report.chunks],
                    "rows": [report.rows],
                }
            )


def run_partition(plan: VertexPlan, partition: int, seconds: float) -> Report:
    """One task, on a worker. User code stays open for the next epoch unless this was the last."""
    task = VertexTask(plan, partition, seconds)
    with task.events.printing():
        report = task.run(operator_for(plan, task.events))
    if report.ended == "stop":
        close_handler(plan.pipeline, plan.vertex)
    return report


def operator_for(plan: VertexPlan, events: Events) -> Callable[[Verdict], None]:
    """What the vertex does with a chunk."""

    def handler(code: Code) -> Handler:
        return handler_for(plan.pipeline, plan.vertex, code, plan.search)

    match plan.role:
        case UserMap(code):
            return partial(run_map, handler(code), concurrency=plan.concurrency)
        case UserSink(code):
            return partial(run_sink, handler(code), batch_size=plan.batch_size)
        case LogSink():
            return partial(log.write, emit=events.log)
        case BlackholeSink():
            return blackhole.write
        case Forward():
            return Verdict.forward_inputs
        case never:
            assert_never(never)
