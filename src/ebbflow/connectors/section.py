"""The contract of a connector: sections of a spec that become plans of the engine.

A connector is a folder with a ``spec.py``, whose sections lint reads, and the code that runs: a
``source.py``, a ``sink.py`` or both. The driver asks a section for its plan once, when a run
begins. That is when secrets are read and optional packages are looked for, so whoever starts a
pipeline hears of mistakes at once. A section imports the code that runs only then: lint needs no
clients, and workers, which get plans, need neither sections nor pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ebbflow.connectors.schema.fields import Section
from ebbflow.domain.errors import SetupError

if TYPE_CHECKING:
    from ebbflow.connectors.generator.source import GeneratorPlan
    from ebbflow.connectors.plans import Pulled, SinkPlan
    from ebbflow.streams.feed import FeedPlan


class SourceSection(Section):
    """The fields of one kind of source."""

    def plan(self, pipeline: str, vertex: str) -> GeneratorPlan | Pulled | FeedPlan:
        """Returns what the vertex reads from. The driver calls it; ``SetupError`` ends the run."""
        raise NotImplementedError


class SinkSection(Section):
    """The fields of one kind of sink."""

    def plan(self) -> SinkPlan:
        """Returns what the vertex writes with. The driver calls it; ``SetupError`` ends the run."""
        raise NotImplementedError


def require_extra(who: str, extra: str, *packages: str) -> None:
    """Raises ``SetupError`` that names the extra to install if one of its packages is missing."""
    for package in packages:
        try:
            import_module(package)
        except ModuleNotFoundError:
            raise SetupError(
                f"{who} needs a package that is not installed.",
                f"Run: pip install 'ebbflow[{extra}]'",
            ) from None
