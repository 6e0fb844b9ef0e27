"""The conformance suite: one list of rules that every source and every sink has to pass.

It runs real pipelines, on local Spark with an embedded NATS server, against the real system that
the connector talks to. With pytest each rule is a test of its own::

    @pytest.fixture(scope="module")
    def trial(tmp_path_factory):
        with SourceTrial(MyQueueUnderTest(), tmp_path_factory.mktemp("queue")) as trial:
            yield trial

    @pytest.mark.parametrize("rule", SOURCE_RULES)
    def test_my_queue(rule, trial):
        rule(trial)

The trial goes on only as far as the rules that are checked need it. ``check_source`` does all of
it at once.
"""

from __future__ import annotations

from pathlib import Path

from ebbflow.testing.background_run import local_spark
from ebbflow.testing.conformance.rules import SinkUnderTest, SourceUnderTest, check_all
from ebbflow.testing.conformance.sinks import SINK_RULES, SinkTrial
from ebbflow.testing.conformance.sources import SOURCE_RULES, SourceTrial

__all__ = [
    "SINK_RULES",
    "SOURCE_RULES",
    "SinkTrial",
    "SourceTrial",
    "check_sink",
    "check_source",
    "local_spark",
]


def check_source(under_test: SourceUnderTest, state: Path, patience: float = 30.0) -> None:
    """Checks every rule for sources; raises one ``RuleBroken`` about all that are broken.

    ``state`` is an empty folder for what the pipelines keep.
    """
    with SourceTrial(under_test, state, patience) as trial:
        check_all(SOURCE_RULES, trial)


def check_sink(under_test: SinkUnderTest, state: Path, patience: float = 30.0) -> None:
    """Checks every rule for sinks, as for sources."""
    with SinkTrial(under_test, state, patience) as trial:
        check_all(SINK_RULES, trial)
