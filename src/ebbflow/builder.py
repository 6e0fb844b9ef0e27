"""What every builder can do with what it has built: run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebbflow.spark.run import Summary
    from ebbflow.spec.model import Spec


class Built:
    """A pipeline or MonoVertex that was written in Python."""

    @property
    def spec(self) -> Spec:
        """The checked model; ``SpecError`` with every problem if there are any."""
        raise NotImplementedError

    def run(self, *, quiet: bool = False, **options: Any) -> Summary:
        """Check it and run it; blocks until it is drained, timed out or stopped.

        What happens is shown as ``ebbflow run`` does, unless ``quiet``. The other options are
        those of ``ebbflow.spark.run.RunOptions``; ``SetupError`` when the machine is not ready.
        """
        spec = self.spec
        from ebbflow.cli import display
        from ebbflow.spark.run import run_pipeline

        if quiet or "watcher" in options:
            return run_pipeline(spec, **options)
        with display.opened(plain=False) as watcher:
            summary = run_pipeline(spec, **options, watcher=watcher)
        watcher.console.print(display.result_table(summary.vertices))
        return summary
