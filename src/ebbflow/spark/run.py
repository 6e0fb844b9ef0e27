"""A run: everything a pipeline needs is started, watched and stopped here, on the driver.

The order of stopping matters: tasks settle their messages while NATS and Spark are still up, then
Spark is stopped, then the embedded server. If anything fails, everything that was started is
stopped again.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Unpack

import nats.errors

from ebbflow.accounts.listener import TaskListener
from ebbflow.accounts.traces import MISSING, asks_for_traces, is_installed
from ebbflow.domain.errors import JetStreamUnavailable
from ebbflow.domain.host import on_signals
from ebbflow.engine.causes import Raised, RaisedErrors
from ebbflow.nats import api
from ebbflow.nats.disk import Unconfirmed
from ebbflow.nats.embedded import FolderWitness, StateFolder
from ebbflow.nats.link import Link
from ebbflow.nats.locate import find_own_server, open_link_for_run
from ebbflow.runtime import provision
from ebbflow.runtime.control import STOP, shorter_epochs_command
from ebbflow.runtime.feeds import Feeds
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.planning import make_plans, plan_replays
from ebbflow.runtime.ports import SystemClock
from ebbflow.runtime.run_setup import (
    Attachment,
    RunOptionNames,
    RunOptions,
    hold_run_lock,
    store_spec,
)
from ebbflow.runtime.task_sharing import Cut, TaskSharing, group_plans
from ebbflow.runtime.worker import WORKER
from ebbflow.spark.engine import Engine, Engines
from ebbflow.spark.session import (
    WARM_TASKS,
    SessionAhead,
    SessionPlan,
    open_session,
    start_ahead,
)
from ebbflow.spark.slots import TURN, Slots
from ebbflow.spark.supervisor import Supervisor, TaskSupervisor
from ebbflow.status.conditions import describe_unread
from ebbflow.status.model import Ended, Phase, PipelineStatus
from ebbflow.status.nodes import describe_change
from ebbflow.status.observer import JobFacts, Observer
from ebbflow.status.run_report import QuietWatcher, Summary, Watcher
from ebbflow.streams.logs import LogEntry
from ebbflow.streams.names import Names
from ebbflow.streams.positions import read_positions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebbflow.spec.model import Spec

_LOOK_EVERY = 0.5
# An idle task reports every two seconds; a task that is silent for this long hangs.
_SILENT = 5.0
_STOP_TIMEOUT = 40.0
# Seconds for NATS to accept a message for the tasks.
_SEND_WITHIN = 2.0


def run_pipeline(
    spec: Spec,
    *,
    watcher: Watcher | None = None,
    attachments: Sequence[Attachment] = (),
    **options: Unpack[RunOptionNames],
) -> Summary:
    """Runs a pipeline until it is drained, timed out or stopped, and returns its summary.

    Runs on the driver and blocks. Raises ``SetupError`` when the machine is not ready for it, and
    ``TypeError`` for an option that does not exist.
    """
    return Run(spec, RunOptions.of(options), watcher or QuietWatcher(), attachments).execute()


def _stop_signals() -> list[signal.Signals]:
    """Returns the signals that ask a process to end, except any that ``nohup`` ignores."""
    ignorable = (signal.SIGHUP, signal.SIGQUIT)
    active = [number for number in ignorable if signal.getsignal(number) is not signal.SIG_IGN]
    return [signal.SIGINT, signal.SIGTERM, *active]


class Run:
    """One run of one pipeline.

    ``answer_within`` is how many seconds NATS may take to answer whether everything is done.
    ``keep_spark`` leaves the session that the run starts to the next run of this process. ``link``
    is the connection of the run once it is open; it is closed when the run has ended.
    """

    def __init__(
        self,
        spec: Spec,
        options: RunOptions,
        watcher: Watcher,
        attachments: Sequence[Attachment] = (),
        answer_within: float = 20.0,
        keep_spark: bool = False,
    ) -> None:
        self._answer_within = answer_within
        self._keep_spark = keep_spark
        self.link: Link | None = None
        self._spec = spec
        self._attachments = attachments
        self._options = options
        self._watcher = watcher
        self._names = Names(spec.name)
        self._stop = threading.Event()
        self._deadline: float | None = None
        self._listener = TaskListener(self._names, self._show_log)
        memory = options.state / "feeds" / spec.name
        self._feeds = Feeds(watcher.stage, memory, options.drain, self.is_ready)
        self._supervisor: Supervisor | None = None
        self._plans: Sequence[VertexPlan] = ()
        self._takes_turns: Callable[[], bool] = lambda: False
        self._explain_silence: Callable[[], str | None] = lambda: None
        self._feed_failures: dict[str, str | None] = {}
        self._feed_errors: defaultdict[str, RaisedErrors] = defaultdict(RaisedErrors)
        self._unconfirmed: Unconfirmed | None = None
        self._witness: FolderWitness | None = None
        self._jobs: dict[str, JobFacts] = {}
        self._ahead: SessionAhead | None = None

    def stop(self) -> None:
        """Stops the run gracefully. Safe to call from any thread."""
        self._stop.set()

    def is_ready(self) -> bool:
        """Returns whether all tasks of every vertex run. Does not block; safe from any thread.

        False while a vertex that has failed is restarted, and while a breaker has stopped a vertex.
        """
        supervisor = self._supervisor
        if supervisor is None or self._stop.is_set():
            return False
        return all(self._is_up(plan, supervisor.of(plan.vertex)) for plan in self._plans)

    def _is_up(self, plan: VertexPlan, task: TaskSupervisor) -> bool:
        name, listener = plan.vertex, self._listener
        if task.failure is not None or listener.halted(name) is not None:
            return False
        return plan.streams.batched or listener.has_reported(name, plan.partitions, task.up_since)

    def execute(self) -> Summary:
        """Starts everything, waits for the end, stops everything and returns the summary."""
        began, options = time.monotonic(), self._options
        with ExitStack() as stack:
            stack.enter_context(self._signals())
            stack.enter_context(self._starting_ahead())
            stack.callback(setattr, self, "link", None)
            self._watcher.stage("starting NATS")
            self._link = stack.enter_context(
                open_link_for_run(
                    options.state,
                    options.nats,
                    login=options.login,
                    inbox=self._names.inbox,
                    port=options.nats_port,
                    sync_always=options.durable,
                    show=self._watcher.stage,
                )
            )
            self.link = self._link
            if find_own_server(options.nats, options.login) is not None:
                self._unconfirmed = Unconfirmed(str(self._link.server), self._watcher.stage)
            else:
                self._witness = FolderWitness(options.state)
            stack.enter_context(hold_run_lock(self._link, self._names))
            plans = self._plans = self._make_plans()
            stack.callback(WORKER.close_run, plans[0].run.id)
            self._observer = Observer(self._link, plans, self._listener, self._spec.kind)
            self._observer.begin()
            for attachment in self._attachments:
                self._attach(stack, attachment)
            stack.enter_context(self._recording_failure())
            stack.enter_context(self._listener.listen(self._link))
            stack.callback(self._feeds.stop)
            engines = Engines(self._session, self._watcher.stage, self._stop)
            ended: Ended = engines.run(partial(self._on_spark, plans)) or "stopped"
            self._check_state()
            # For the last events. Losing the server no longer matters to the run.
            with contextlib.suppress(Exception):
                self._link.flush()
            if self._has_too_many_dead(self._observer.last):
                ended = "failed"
            status = self._observer.end(ended)
        before, totals = self._observer.before, self._observer.totals
        vertices = {name: totals[name] - before[name] for name in totals}
        publishing = {name: self._listener.tally(name) for name in totals}
        seconds = time.monotonic() - began
        return Summary(self._spec.name, ended, seconds, vertices, totals, publishing, status)

    def _attach(self, stack: ExitStack, attachment: Attachment) -> None:
        """Opens an attachment that is closed before the connection to the server."""
        opened = attachment(self._link.server, self._spec.name, self._watcher.stage)
        for name, address in stack.enter_context(opened).items():
            self._observer.link_to(name, address)

    @contextmanager
    def _recording_failure(self) -> Iterator[None]:
        """Records the run as failed if it ends with an error."""
        try:
            yield
        except BaseException:
            self._observer.end("failed")
            raise

    def _on_spark(self, plans: Sequence[VertexPlan], engine: Engine) -> Ended:
        """Runs the vertices until the run ends or Spark has died, then stops them."""
        spark = engine.spark
        self._show_spark_ui(spark)
        self._check_batches(spark, plans)
        slots = self._slots()
        self._takes_turns = slots.takes_turns
        self._explain_silence = slots.explain_silence
        with slots.count(spark), self._auditing(spark, plans[0], slots):
            supervisor = self._supervisor = Supervisor(spark, plans, lambda: slots.epoch_seconds)
            supervisor.start()
            self._watcher.stage("running")
            try:
                with self._feeds.running(self._link, spark, plans):
                    ended = self._wait(plans, supervisor, engine, slots)
                    self._watcher.stage("stopping")
            finally:
                self._supervisor = None
                supervisor.stop(self._send_stop, _STOP_TIMEOUT)
            self._look(supervisor, "stopping")
            return ended

    def _auditing(
        self, spark: SparkSession, plan: VertexPlan, slots: Slots
    ) -> AbstractContextManager[None]:
        """Writes the audit table, if there is one; only then is its code imported."""
        if self._spec.audit is None:
            return contextlib.nullcontext()
        from ebbflow.spark.audit.writer import writing_audit

        reporting = (self._observer, self._watcher.stage)
        return writing_audit(self._spec.audit, spark, self._link, plan, slots, *reporting)

    def _show_spark_ui(self, spark: SparkSession) -> None:
        """Shows the address of Spark's web UI, if it is enabled."""
        if address := spark.sparkContext.uiWebUrl:
            self._observer.link_to("spark_ui", address)
            self._watcher.stage(f"Spark's web UI is at {address}")

    def _show_log(self, entry: LogEntry) -> None:
        if entry.printed.kind == "message":
            self._watcher.line(entry.printed.text)
        else:
            self._watcher.log(entry)

    def _make_plans(self) -> list[VertexPlan]:
        link, search = self._link, self._options.search
        if asks_for_traces(os.environ) and not is_installed():
            self._watcher.stage(MISSING)
        if self._options.fresh:
            link.run(provision.remove(link, self._spec.name))
            self._feeds.forget()
        plans = make_plans(
            self._spec, link.server, link.client.max_payload, str(search) if search else None
        )
        self._feeds.check(plans)
        replicas = self._spec.inter_step_buffer.replicas
        link.run(provision.provision(link, plans, replicas))
        link.run(store_spec(link.client, self._names, self._spec))
        positions = link.run(read_positions(link.client, self._names))
        plans = plan_replays(self._spec, plans, positions)
        lineage = link.run(provision.lineage(link, self._spec.name))
        run = replace(plans[0].run, lineage=lineage, log_level=self._options.log_level)
        return [replace(plan, run=run) for plan in plans]

    @contextmanager
    def _starting_ahead(self) -> Iterator[None]:
        """Starts the JVM while NATS, streams and plans are prepared; ends it if it is not used."""
        plan = self._session_plan
        StateFolder(self._options.state).make_writable(plan.logs)
        self._ahead = start_ahead(plan)
        try:
            yield
        finally:
            if self._ahead is not None:
                self._ahead.close()

    def _session(self) -> AbstractContextManager[SparkSession]:
        ahead, self._ahead = self._ahead, None
        return open_session(self._session_plan, self._options.search, ahead, self._keep_spark)

    @property
    def _session_plan(self) -> SessionPlan:
        options, spec = self._options, self._spec
        tasks = sum(step.streams.partitions for step in spec.steps)
        return SessionPlan(
            spec.name,
            options.master,
            max(tasks, WARM_TASKS) if self._keep_spark else tasks,
            options.state.resolve() / "logs",
            options.spark_settings,
            schedules=not spec.has_tables,
        )

    def _check_batches(self, spark: SparkSession, plans: Sequence[VertexPlan]) -> None:
        if any(plan.streams.batched for plan in plans):
            from ebbflow.spark.batch.vertex import check_batch_plans

            check_batch_plans(spark, plans)

    def _count_tasks(self) -> int:
        """Returns the number of tasks; before they are started, how many there will be."""
        supervisor = self._supervisor
        if supervisor is not None:
            return supervisor.count_tasks()
        return sum(group[0].partitions for group in group_plans(self._plans))

    def _slots(self) -> Slots:
        show, epoch, server = self._watcher.stage, self._options.epoch, self._link.server
        return Slots(self._count_tasks, epoch, show, self._send_turns, server.is_loopback)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Lets signals stop the run gracefully; only the main thread receives them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with self.stopped_by_signals():
            yield

    def stopped_by_signals(self) -> AbstractContextManager[None]:
        """Lets signals stop the run gracefully while the context lasts; on the main thread."""
        return on_signals(_stop_signals(), lambda *_: self._stop.set())

    def _wait(
        self, plans: Sequence[VertexPlan], supervisor: Supervisor, engine: Engine, slots: Slots
    ) -> Ended:
        tasks = self._listener
        sharing = TaskSharing(plans, SystemClock(), tasks.load, tasks.numbers, tasks.in_call)
        if self._deadline is None and self._options.timeout is not None:
            self._deadline = time.monotonic() + self._options.timeout
        while not self._stop.wait(_LOOK_EVERY):
            self._link.check()
            self._check_state()
            engine.check(suspected=any(task.failure for task in supervisor.tasks))
            if self._has_too_many_dead(self._look(supervisor)):
                return "failed"
            if self._options.drain and self._drained(plans):
                return "drained"
            if self._deadline is not None and time.monotonic() > self._deadline:
                return "timeout"
            self._share_tasks(sharing, supervisor, slots)
        return "stopped"

    def _share_tasks(self, sharing: TaskSharing, supervisor: Supervisor, slots: Slots) -> None:
        """Changes which vertices share tasks, if that is due and there are enough slots."""
        change = sharing.look(supervisor.groups)
        if change is None or (isinstance(change, Cut) and not slots.has_room(change.tasks)):
            return
        self._watcher.stage(change.describe())
        supervisor.change(change, lambda name: self._send_to_tasks(shorter_epochs_command(0, name)))

    def _check_state(self) -> None:
        """Raises ``SetupError`` if the folder of the embedded server is gone, with its messages."""
        if self._witness is not None:
            self._witness.check()

    def _drained(self, plans: Sequence[VertexPlan]) -> bool:
        """Returns whether no messages are left; false if NATS does not answer, which is retried."""
        if not self._feeds.exhausted:
            return False
        try:
            return self._link.run(provision.drained(self._link, plans), self._answer_within)
        except (nats.errors.Error, api.ApiError, JetStreamUnavailable, TimeoutError):
            return False

    def _has_too_many_dead(self, status: PipelineStatus) -> bool:
        most = self._options.max_dead_letters
        dead = sum(vertex.counts.dead_lettered for vertex in status.vertices)
        return most is not None and dead > most

    def _look(self, supervisor: Supervisor, phase: Phase = "running") -> PipelineStatus:
        vertices = {plan.vertex: plan for plan in self._plans}
        if self._unconfirmed is not None:
            self._unconfirmed.look({name: self._listener.tally(name) for name in vertices})
        if phase == "running":  # after the stop, the last reasons for no progress still matter
            self._jobs = {
                name: self._facts_of(plan, supervisor.of(name)) for name, plan in vertices.items()
            }
        was_unread, were_down = self._observer.unread, self._observer.nodes.down
        status = self._observer.look(phase, self._jobs)
        for sentence in describe_change(were_down, self._observer.nodes.down):
            self._watcher.stage(sentence)
        if bool(was_unread) != bool(self._observer.unread):
            self._watcher.stage(_describe_reading(status, self._observer.unread))
        self._watcher.look(status)
        return status

    def _check_feed(self, name: str) -> str | None:
        """Returns why the feed of a vertex is failing, and notes each new reason once."""
        before, failure = self._feed_failures.get(name), self._feeds.failure(name)
        if failure is not None and failure != before:
            self._feed_errors[name].add(Raised.of_line(failure), datetime.now(UTC))
        self._feed_failures[name] = failure
        return failure

    def _facts_of(self, plan: VertexPlan, task: TaskSupervisor) -> JobFacts:
        name = plan.vertex
        silence = self._listener.longest_silence(name, plan.partitions)
        reports = not (plan.streams.batched or self._takes_turns() or self._is_blocked(plan, task))
        is_silent = reports and task.failure is None and _SILENT < silence < math.inf
        failure = task.failure_of(name) or self._check_feed(name)
        return JobFacts.with_errors(
            self._feed_errors[name] or task.errors[name],
            restarts=task.restarts,
            failure=failure,
            up=self._is_up(plan, task),
            opened=plan.streams.batched or self._listener.has_opened(name, plan.partitions),
            silent=silence if is_silent else None,
            silent_because=self._explain_silence() if is_silent else None,
        )

    def _is_blocked(self, plan: VertexPlan, task: TaskSupervisor) -> bool:
        """Whether a long call of another vertex in its task keeps this vertex from reporting."""
        others = (other.vertex for other in task.plans if other.vertex != plan.vertex)
        return any(self._listener.in_call(name) is not None for name in others)

    def _send_stop(self) -> None:
        self._send_to_tasks(STOP)

    def _send_turns(self) -> None:
        self._send_to_tasks(shorter_epochs_command(TURN))

    def _send_to_tasks(self, message: bytes) -> None:
        """Sends a message to all tasks. Ignores failures: it is repeated, and epochs end anyway."""
        with contextlib.suppress(Exception):
            publishing = self._link.client.publish(self._names.control_subject, message)
            self._link.run(publishing, _SEND_WITHIN)


def _describe_reading(status: PipelineStatus, unread: str | None) -> str:
    if unread is None:
        return "NATS reports the progress of the pipeline again"
    concern = describe_unread(status, unread)
    return f"{concern.what}. {concern.next_step}"
