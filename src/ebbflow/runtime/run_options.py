"""The options of a run, as users write them and as the engine takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from ebbflow.domain.durations import Duration, milliseconds
from ebbflow.domain.errors import did_you_mean

if TYPE_CHECKING:
    from ebbflow.nats.login import Login


LogLevel = Literal["debug", "info", "warning", "error", "critical"]
"""The lowest level at which the logs of user code are shown."""


class RunOptionNames(TypedDict, total=False):
    """The keywords of ``Pipeline.run`` and ``MonoVertex.run``; ``RunOptions`` explains them."""

    drain: bool
    timeout: Duration | None
    master: str | None
    state: str | Path
    nats: str | None
    login: Login | None
    nats_port: int
    durable: bool
    fresh: bool
    epoch: float
    conf: Mapping[str, str]
    spark_ui: bool
    search: str | Path | None
    log_level: LogLevel
    max_dead_letters: int | None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of one run, checked. Each is a keyword of ``run``.

    ``drain`` ends the run when every message is processed. ``timeout`` ends it in any case; here it
    is in seconds. ``master`` is a Spark master, ``conf`` has Spark's settings, and ``spark_ui``
    switches Spark's own pages on. ``state`` is the
    folder of the embedded NATS server, ``nats_port`` is its port, and ``durable`` has it sync every
    write. ``nats`` and ``login`` lead to a server of your own. ``fresh`` forgets earlier runs.
    ``epoch`` is how many seconds Spark tasks live. User code is looked up in ``search`` first.
    What it logs is shown from ``log_level`` on. With more dead letters than ``max_dead_letters``
    the run stops and has failed.
    """

    drain: bool = False
    timeout: float | None = None
    master: str | None = None
    state: Path = Path(".ebbflow")
    nats: str | None = None
    login: Login | None = None
    nats_port: int = 0
    durable: bool = False
    fresh: bool = False
    epoch: float = 30.0
    conf: Mapping[str, str] = field(default_factory=dict)
    spark_ui: bool = False
    search: Path | None = None
    log_level: LogLevel = "info"
    max_dead_letters: int | None = None

    @property
    def spark_settings(self) -> dict[str, str]:
        """Spark's settings, as far as they are said; those of ``conf`` win."""
        pages = {"spark.ui.enabled": "true"} if self.spark_ui else {}
        return {**pages, **self.conf}

    @classmethod
    def of(cls, names: RunOptionNames) -> RunOptions:
        """Returns the options that the keywords mean; ``TypeError`` for one that does not exist."""
        known = [*cls.__dataclass_fields__, "quiet", "watcher", "ui", "metrics"]
        for name in sorted(names.keys() - set(known)):
            meant = did_you_mean(name, known, "it takes")
            raise TypeError(f"run() has no option {name!r}; {meant}")
        timeout, search = names.get("timeout"), names.get("search")
        changed = {
            "timeout": None if timeout is None else milliseconds(timeout) / 1000,
            "state": Path(names.get("state", ".ebbflow")),
            "search": None if search is None else Path(search),
        }
        return cls(**{**names, **changed})  # type: ignore[arg-type]
