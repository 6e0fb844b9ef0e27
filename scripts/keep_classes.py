"""Runs small pipelines so that the JVM archives its loaded classes, which speeds up later starts.

``make setup`` does this once for each environment. A run without an archive writes it as well, but
starts later for it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from ebbflow import Pipeline
from ebbflow.connectors import Blackhole, Generator, Spark


def main() -> None:
    """Loads the classes for resident tasks, and those for SQL and tables."""
    with tempfile.TemporaryDirectory(prefix="ebbflow-setup-") as folder:
        tasks = Pipeline("setup-tasks").source("in", Generator(messages=10))
        tables = (
            Pipeline("setup")
            .source("in", Generator(messages=10))
            .map("query", sql="SELECT id, to_json(named_struct('n', id)) AS value FROM messages")
            .sink(
                "out",
                Spark(format="json", options={"path": f"{folder}/out"}, schema="n STRING"),
            )
        )
        for pipeline in (tasks.sink("out", Blackhole()), tables):
            pipeline.run(drain=True, timeout="120s", state=Path(folder) / "state")


if __name__ == "__main__":
    main()
