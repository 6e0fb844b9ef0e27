"""A run that Python code has started, and the handle to it.

``Pipeline(...).start()`` returns a ``PipelineRun``; ``run()`` does the same and waits for the end.
The run itself is that of ``spark.run``: this module adds the thread, the last known status, and
operations on the running pipeline. Whatever ends the ``with`` block, the run is stopped in good
order and waited for, so that none continues unnoticed. Waiting for a run raises the error that has
ended it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from ebbflow.deadletters import DeadLetters, LetterFilter, StoredLetter
from ebbflow.domain.durations import Duration, format_duration, milliseconds
from ebbflow.domain.spelling import named_options
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link_to_pipeline
from ebbflow.operations.pausing import PauseReport, pause_vertices, resume_vertices
from ebbflow.runtime.run_setup import Attachment, RunOptions
from ebbflow.spark.run import Run
from ebbflow.status.model import PipelineStatus
from ebbflow.status.run_report import QuietWatcher, Summary, Watcher
from ebbflow.streams.logs import LogEntry
from ebbflow.streams.names import Names

if TYPE_CHECKING:
    from ebbflow.spec.model import Spec

_MOST_LETTERS = 1_000


class _Relay(Watcher):
    """Keeps the last status of a run, and passes everything on."""

    def __init__(self, pipeline: str, to: Watcher) -> None:
        self.status = PipelineStatus(pipeline, phase="starting")
        self.started = threading.Event()
        self._to = to

    @override
    def stage(self, text: str) -> None:
        self._to.stage(text)

    @override
    def line(self, text: str) -> None:
        self._to.line(text)

    @override
    def log(self, entry: LogEntry) -> None:
        self._to.log(entry)

    @override
    def look(self, status: PipelineStatus) -> None:
        self.status = status
        self._to.look(status)
        self.started.set()

    def end(self, summary: Summary) -> None:
        """Lets the quiet watcher print how the run ended; others have the summary."""
        if isinstance(self._to, QuietWatcher):
            self._to.end(summary)


class PipelineRun:
    """One run of a pipeline in the background; ``Pipeline(...).start()`` returns it.

    It runs in a thread of this process, which is Spark's driver. All methods may be called from any
    thread. As a context manager it stops the run when the block ends, and waits for that.
    """

    def __init__(
        self,
        spec: Spec,
        options: RunOptions,
        watcher: Watcher,
        attachments: Sequence[Attachment] = (),
    ) -> None:
        self.pipeline = spec.name
        self._options = options
        self._relay = _Relay(spec.name, watcher)
        self._run = Run(spec, options, self._relay, attachments, keep_spark=True)
        self._ended = threading.Event()
        self._summary: Summary | None = None
        self._error: BaseException | None = None

    def start(self, timeout: Duration | None = None) -> Self:
        """Starts the run and returns once its vertices are at work, or once it has ended.

        Raises the error that keeps it from starting, or ``TimeoutError`` after ``timeout``.
        """
        within = _seconds(timeout)
        thread = threading.Thread(
            target=self._execute_and_report, name=f"run {self.pipeline}", daemon=True
        )
        thread.start()
        if not self._relay.started.wait(within):
            self._run.stop()
            raise TimeoutError(f"{self.pipeline} has not started within {_words(timeout)}")
        if self._error is not None:
            self._ended.wait()
            raise self._error
        return self

    def execute(self) -> Summary:
        """Runs it on this thread until it has ended. On the main thread, signals end the run."""
        self._execute()
        return self._result()

    def _execute_and_report(self) -> None:
        self._execute(self._relay.end)

    def _execute(self, report: Callable[[Summary], None] | None = None) -> None:
        try:
            self._summary = self._run.execute()
            if report is not None:
                report(self._summary)
        except BaseException as error:  # raised where the run is waited for
            self._error = error
        finally:
            self._relay.started.set()
            self._ended.set()

    @property
    def is_running(self) -> bool:
        """Whether the run has not ended yet."""
        return not self._ended.is_set()

    def status(self) -> PipelineStatus:
        """Returns the state of the pipeline: about half a second old, or final."""
        return self._summary.status if self._summary is not None else self._relay.status

    @named_options
    def wait(self, timeout: Duration | None = None) -> Summary:
        """Waits for the end of the run and returns its summary.

        Raises ``TimeoutError`` if it has not ended within the timeout; the run then continues.
        Raises the error that has ended the run, if any. On the main thread, Ctrl-C stops the run,
        and the summary says so.
        """
        within = _seconds(timeout)
        with self._stopped_by_signals():
            if not self._ended.wait(within):
                raise TimeoutError(
                    f"{self.pipeline} has not ended within {_words(timeout)} and continues; "
                    "stop() ends it"
                )
        return self._result()

    @named_options
    def stop(self, timeout: Duration | None = None) -> Summary:
        """Stops the run in good order, waits for its end and returns the summary.

        Messages in flight are settled first; the next run continues with the rest. Raises
        ``TimeoutError`` if the run has not ended within the timeout, and the error that has ended
        the run, if any.
        """
        within = _seconds(timeout)
        self._run.stop()
        if not self._ended.wait(within):
            raise TimeoutError(f"{self.pipeline} has not stopped within {_words(timeout)}")
        return self._result()

    def pause(self, vertex: str | None = None) -> PauseReport:
        """Pauses a vertex, or all, until ``resume``; messages in flight are settled first."""
        with self._link() as link:
            return pause_vertices(link, Names(self.pipeline), vertex)

    def resume(self, vertex: str | None = None) -> PauseReport:
        """Resumes a vertex, or all of them; also one that its breaker has stopped."""
        with self._link() as link:
            return resume_vertices(link, Names(self.pipeline), vertex)

    @named_options
    def dead_letters(
        self, chosen: LetterFilter | None = None, limit: int = _MOST_LETTERS
    ) -> list[StoredLetter]:
        """Returns the dead letters of the pipeline, newest first, including those of earlier runs.

        ``DeadLetters.open`` replays and deletes them.
        """
        with self._link() as link:
            return list(DeadLetters(link, self.pipeline).list(chosen, limit, newest=True))

    @named_options
    async def wait_async(self, timeout: Duration | None = None) -> Summary:
        """Waits like ``wait``, without blocking the event loop."""
        return await asyncio.to_thread(self.wait, timeout)

    @named_options
    async def stop_async(self, timeout: Duration | None = None) -> Summary:
        """Stops the run like ``stop``, without blocking the event loop."""
        return await asyncio.to_thread(self.stop, timeout)

    async def pause_async(self, vertex: str | None = None) -> PauseReport:
        """Pauses like ``pause``, without blocking the event loop."""
        return await asyncio.to_thread(self.pause, vertex)

    async def resume_async(self, vertex: str | None = None) -> PauseReport:
        """Resumes like ``resume``, without blocking the event loop."""
        return await asyncio.to_thread(self.resume, vertex)

    async def dead_letters_async(
        self, chosen: LetterFilter | None = None, limit: int = _MOST_LETTERS
    ) -> list[StoredLetter]:
        """Returns dead letters like ``dead_letters``, without blocking the event loop."""
        return await asyncio.to_thread(self.dead_letters, chosen, limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        running = self.is_running
        self._run.stop()
        self._ended.wait()
        # An error in the block takes precedence, and wait() has raised the error of an ended run.
        if running and error is None and self._error is not None:
            raise self._error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def __repr__(self) -> str:
        return f"<run of {self.status()}>"

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    def _result(self) -> Summary:
        if self._error is not None:
            raise self._error
        assert self._summary is not None
        return self._summary

    @contextmanager
    def _link(self) -> Iterator[Link]:
        """Yields the connection of the run, or a new one once the run has ended."""
        link = self._run.link
        if link is not None and self.is_running:
            yield link
            return
        options, inbox = self._options, Names(self.pipeline).inbox
        with open_link_to_pipeline(options.state, options.nats, inbox=inbox) as own:
            yield own

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with self._run.stopped_by_signals():
            yield


def is_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookView(Watcher):
    """Shows the status of a run below its cell, and replaces it while the run lasts.

    What vertices print is printed in the cell, as all prints are.
    """

    def __init__(self, quiet: Watcher, pipeline: str) -> None:
        self._quiet, self._pipeline = quiet, pipeline
        self._shown: Any = None

    @override
    def stage(self, text: str) -> None:
        self._quiet.stage(text)
        if self._shown is None:
            self.show(PipelineStatus(self._pipeline, phase="starting"))

    @override
    def line(self, text: str) -> None:
        self._quiet.line(text)

    @override
    def log(self, entry: LogEntry) -> None:
        self._quiet.log(entry)

    @override
    def look(self, status: PipelineStatus) -> None:
        self._quiet.look(status)
        self.show(status)

    def show(self, status: PipelineStatus) -> None:
        """Shows a status in place of the one before."""
        from IPython import display

        if self._shown is None:
            self._shown = display.display(status, display_id=True)
        else:
            self._shown.update(status)


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else milliseconds(timeout) / 1000


def _words(timeout: Duration | None) -> str:
    return format_duration(_seconds(timeout) or 0.0)
