"""What a run reports about itself: its status while it runs, and a ``Summary`` at its end.

The run reports to a ``Watcher`` on the driver. It calls ``line`` from the thread of the connection
to NATS, and the other methods from the thread that runs the pipeline.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from ebbflow.domain.outcome import Counts
from ebbflow.domain.records import to_plain
from ebbflow.nats.publish import Tally
from ebbflow.status.ending import Leftover, describe_end, list_leftovers
from ebbflow.status.model import PipelineStatus, html_table
from ebbflow.streams.logs import LogEntry

_LOGGER = logging.getLogger("ebbflow")

PROGRESS = frozenset({"starting NATS", "starting Spark", "running", "stopping"})
"""The stages of every run. All other reports are addresses it listens on, or need attention."""

NOTHING_READ = "Nothing was read: the sources were exhausted in an earlier run."
START_OVER = "Start over with fresh=True, which deletes what the pipeline has stored."


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """The result of a run. ``ended`` is ``drained``, ``timeout``, ``stopped`` or ``failed``.

    A run has ``failed`` if there were more dead letters than allowed. ``vertices`` has the
    counts of this run by vertex, ``totals`` those since the pipeline was first started.
    ``publishing`` counts the attempts and problems of writing to NATS in this run, by vertex.
    ``status`` is the last state of the pipeline. In a terminal or a notebook a summary shows how
    the run ended and what is left.
    """

    pipeline: str
    ended: str
    seconds: float
    vertices: dict[str, Counts]
    totals: dict[str, Counts]
    publishing: dict[str, Tally] = field(default_factory=dict)
    status: PipelineStatus = field(default_factory=lambda: PipelineStatus(""))

    @property
    def left(self) -> tuple[Leftover, ...]:
        """What the run has left for the next run: where, how much, until when and why."""
        return () if self.ended == "drained" else list_leftovers(self.status)

    @property
    def dead_letters(self) -> int:
        """The number of messages that became dead letters in this run."""
        return sum(counts.dead_lettered for counts in self.vertices.values())

    @property
    def had_nothing_to_do(self) -> bool:
        """Whether the run read nothing because an earlier run has read everything."""
        nothing_now = not any(counts.read for counts in self.vertices.values())
        before = any(counts.read for counts in self.totals.values())
        return self.ended == "drained" and nothing_now and before

    def describe(self, where: str = "") -> list[str]:
        """Returns the end of the run in lines, as ``ebbflow run`` prints it.

        ``where`` are the options with which a command finds the pipeline.
        """
        lines = list(describe_end(self.status, self.ended, self.seconds, where))
        return [*lines, NOTHING_READ] if self.had_nothing_to_do else lines

    def facts(self) -> dict[str, Any]:
        """Returns everything as values for JSON."""
        return {
            "pipeline": self.pipeline,
            "ended": self.ended,
            "seconds": round(self.seconds, 3),
            "dead_letters": self.dead_letters,
            "left": [*map(to_plain, self.left)],
            "vertices": {name: c.as_dict() for name, c in self.vertices.items()},
            "totals": {name: c.as_dict() for name, c in self.totals.items()},
            "publishing": {name: to_plain(t) for name, t in self.publishing.items()},
        }

    def to_json(self) -> str:
        """Returns the JSON text that ``ebbflow run --summary`` writes."""
        return json.dumps(self.facts(), indent=2)

    def __repr__(self) -> str:
        longest = max(map(len, self.vertices), default=0)
        rows = [f"  {name:<{longest}}  {_nonzero(c)}" for name, c in self.vertices.items()]
        hint = [START_OVER] if self.had_nothing_to_do else []
        return "\n".join([f"Summary of {self.pipeline}", *rows, *self.describe(), *hint])

    def _repr_html_(self) -> str:
        below = [*self.describe(), *([START_OVER] if self.had_nothing_to_do else [])]
        rows = [(name, _nonzero(counts)) for name, counts in self.vertices.items()]
        return html_table(f"Summary of {self.pipeline}", ("vertex", "this run"), rows, below)


def _nonzero(counts: Counts) -> str:
    return " ".join(f"{name}={n}" for name, n in counts.as_dict().items() if n) or "nothing read"


class Watcher:
    """Receives what a run reports. Pass an instance to ``run(watcher=...)`` or ``start``.

    A base class: override what you need; every method does nothing here. All are called on the
    driver, ``line`` and ``log`` from another thread than the others. An exception in ``look`` or
    ``stage`` ends the run, which raises it.
    """

    def stage(self, text: str) -> None:
        """The run starts or stops something, or something about it needs attention."""

    def line(self, text: str) -> None:
        """A ``log`` sink has printed messages, one per line; called from another thread."""

    def log(self, entry: LogEntry) -> None:
        """User code has printed or logged something; called from another thread."""

    def look(self, status: PipelineStatus) -> None:
        """The state of the pipeline and all its vertices, about twice a second."""


class QuietWatcher(Watcher):
    """The watcher of a run that Python code starts: it draws nothing.

    What vertices print goes to standard output, as all prints do, and what they log to the loggers
    ``ebbflow.VERTEX``. Stages go to the logger ``ebbflow`` as information, and a vertex that fails,
    waits or was stopped as a warning. The addresses that the run listens on, and what needs
    attention, are also printed to standard error, unless the program shows the output of that
    logger.
    """

    def __init__(self) -> None:
        self._troubles: dict[str, str | None] = {}

    @override
    def stage(self, text: str) -> None:
        """Logs it, and prints what people must see unless the log shows it."""
        _LOGGER.info("%s", text)
        shown = _LOGGER.isEnabledFor(logging.INFO) and _LOGGER.hasHandlers()
        if text not in PROGRESS and not shown:
            with contextlib.suppress(OSError):
                sys.stderr.write(f"ebbflow: {text}\n")

    @override
    def line(self, text: str) -> None:
        """Prints it; a closed standard output must not end the calling thread."""
        with contextlib.suppress(OSError):
            sys.stdout.write(f"{text}\n")

    @override
    def log(self, entry: LogEntry) -> None:
        """Prints what was printed, with its vertex; logs what was logged to ``ebbflow.VERTEX``."""
        printed = entry.printed
        if printed.kind == "log":
            level = logging.getLevelNamesMapping().get(printed.level.upper(), logging.INFO)
            _LOGGER.getChild(entry.vertex).log(level, "%s", printed.text)
        else:
            stream = sys.stderr if printed.kind == "error" else sys.stdout
            with contextlib.suppress(OSError):
                stream.write(f"{entry.with_vertex()}\n")

    def end(self, summary: Summary) -> None:
        """Prints how the run ended if it needs attention: nothing read, or dead letters."""
        if summary.had_nothing_to_do:
            self.stage(f"{NOTHING_READ} {START_OVER}")
        elif summary.dead_letters or (summary.ended == "timeout" and summary.left):
            self.stage("\n  ".join([summary.pipeline, *filter(None, summary.describe())]))

    @override
    def look(self, status: PipelineStatus) -> None:
        """Logs why a vertex makes no progress and what to do, once for each reason."""
        for vertex in status.vertices:
            if vertex.failure and vertex.failure != self._troubles.get(vertex.name):
                concern = next((c for c in status.problems if c.vertex == vertex.name), None)
                words = vertex.words or vertex.failure
                step = f". {concern.next_step}" if concern and concern.next_step else ""
                _LOGGER.warning("%s makes no progress: %s%s", vertex.name, words, step)
            self._troubles[vertex.name] = vertex.failure
