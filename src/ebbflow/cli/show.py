"""Running a built pipeline from Python with the same display as the command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebbflow.spark.run import Summary
    from ebbflow.spec.model import Spec


def shown(spec: Spec, quiet: bool, options: dict[str, Any]) -> Summary:
    """Run it, showing what happens and what came of it unless ``quiet``."""
    from ebbflow.cli import display
    from ebbflow.spark.run import run_pipeline

    if quiet or "watcher" in options:
        return run_pipeline(spec, **options)
    with display.opened(plain=False) as watcher:
        summary = run_pipeline(spec, **options, watcher=watcher)
    watcher.console.print(display.result_table(summary.vertices))
    return summary
