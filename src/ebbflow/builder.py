"""``Builder``: the base of ``Pipeline`` and ``MonoVertex``, which runs what they have built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbflow.runtime.attachment import Attachment
    from ebbflow.runtime.run_options import RunOptionNames
    from ebbflow.spec.model import Spec
    from ebbflow.status.run_report import Summary, Watcher


class Builder:
    """A pipeline or MonoVertex that is written in Python."""

    @property
    def spec(self) -> Spec:
        """The checked model; ``SpecError`` with every problem if there are any."""
        raise NotImplementedError

    def run(
        self,
        *,
        quiet: bool = True,
        watcher: Watcher | None = None,
        ui: bool | str = False,
        metrics: bool | str = False,
        **options: Unpack[RunOptionNames],
    ) -> Summary:
        """Checks the pipeline and runs it on this driver; blocks until it has ended.

        It ends when it is drained (``drain=True``), timed out (``timeout="5m"``) or stopped with
        Ctrl-C. It shows what vertices print, a ``log`` sink included, where it listens, and what
        needs attention; the logger ``ebbflow`` has the rest. ``quiet=False`` shows what
        ``ebbflow run`` shows; your own ``watcher`` receives everything instead.

        ``ui`` serves a web page of the run, and ``metrics`` its metrics and health alone: ``True``,
        or where to listen as ``"HOST:PORT"``. The addresses are told like all else.

        Raises ``SpecError`` if the pipeline has problems, ``TypeError`` for an option that does not
        exist, ``SetupError`` if this machine is not ready, and ``EngineLost`` if Spark kept dying.
        An exception in user code is the outcome of its message and does not end the run.
        """
        from ebbflow.runtime.run_options import RunOptions

        RunOptions.of(options)  # a misspelt option is told before anything is started
        if not quiet and watcher is not None:
            raise TypeError("run() takes quiet=False or a watcher, not both")
        spec = self.spec
        from ebbflow.spark.run import run_pipeline

        beside: list[Attachment] = []
        if ui or metrics:
            from ebbflow.ui.attaching import attach_pages

            beside = attach_pages(ui, metrics)

        if watcher is not None:
            return run_pipeline(spec, watcher=watcher, beside=beside, **options)
        if quiet:
            return _run_quietly(spec, beside, options)
        from ebbflow.display import open_display
        from ebbflow.display.ending import show_end

        with open_display(draining=options.get("drain", False)) as display:
            summary = run_pipeline(spec, watcher=display, beside=beside, **options)
        show_end(display, summary)
        return summary


def _run_quietly(spec: Spec, beside: Sequence[Attachment], options: RunOptionNames) -> Summary:
    """Runs a pipeline and draws nothing; says so if there was nothing to do."""
    from ebbflow.spark.run import run_pipeline
    from ebbflow.status.run_report import NOTHING_READ, START_OVER, QuietWatcher

    watcher = QuietWatcher()
    summary = run_pipeline(spec, watcher=watcher, beside=beside, **options)
    if summary.had_nothing_to_do:
        watcher.stage(f"{NOTHING_READ} {START_OVER}")
    return summary
