"""The source and the sink for tests keep the rules that real ones keep."""

from __future__ import annotations

import pytest

from ebbflow import Message, Pipeline
from ebbflow.testing import (
    SINK_RULES,
    MemorySink,
    MemorySource,
    Sample,
    SinkTrial,
    SinkUnderTest,
    SourceTrial,
    SourceUnderTest,
)
from tests.conformance.conftest import PATIENCE
from tests.conformance.waiving import (
    RULES_FLOODED_WHEN_ASKED,
    blocked_elsewhere,
    blocked_when_asked,
)

pytestmark = pytest.mark.slow


class MemorySourceUnderTest(SourceUnderTest):
    keeps_keys = True
    keeps_headers = True

    def __init__(self, source: MemorySource, redelivers: bool) -> None:
        self._source = source
        self.waived = blocked_when_asked()
        if not redelivers:
            self.waived = blocked_elsewhere("the source that redelivers")

    def source(self):
        return self._source.code

    def put(self, samples):
        self._source.put(*samples)

    def waiting(self):
        return self._source.waiting

    def unsettled(self):
        return self._source.unsettled


KINDS = {
    "redelivers": {"redelivers": True},
    "does not redeliver": {"redelivers": False},
    "columns, redelivers": {"redelivers": True, "columns": True},
    "columns, does not redeliver": {"redelivers": False, "columns": True},
}
# Together these two cover everything that the others cover.
ALWAYS = ("redelivers", "columns, does not redeliver")
TRIED = [
    pytest.param(kind, id=name, marks=() if name in ALWAYS else pytest.mark.long)
    for name, kind in KINDS.items()
]


@pytest.fixture(scope="module", params=TRIED)
def source_trial(request, tmp_path_factory):
    with MemorySource(**request.param) as source:
        under_test = MemorySourceUnderTest(source, request.param["redelivers"])
        with SourceTrial(under_test, tmp_path_factory.mktemp("state"), PATIENCE) as trial:
            yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", RULES_FLOODED_WHEN_ASKED)
def test_the_memory_source_keeps_every_rule(rule, source_trial):
    rule(source_trial)


class MemorySinkUnderTest(SinkUnderTest):
    keeps_keys = True
    keeps_headers = True
    can_refuse = True
    can_go_down = True

    def __init__(self, sink: MemorySink) -> None:
        self._sink = sink
        self.mode = sink.mode
        self.refuse = sink.refuse
        self.go_down = sink.go_down
        self.come_up = sink.come_up

    def sink(self):
        return self._sink.code

    def landed(self):
        return self._sink.landed


@pytest.fixture(scope="module", params=[False, True], ids=["lists", "columns"])
def sink_trial(request, tmp_path_factory):
    with MemorySink(columns=request.param) as sink:
        under_test = MemorySinkUnderTest(sink)
        with SinkTrial(under_test, tmp_path_factory.mktemp("state"), PATIENCE) as trial:
            yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SINK_RULES)
def test_the_memory_sink_keeps_every_rule(rule, sink_trial):
    rule(sink_trial)


def test_a_pipeline_between_memory_connectors_ends_when_all_is_acknowledged(tmp_path):
    def double(datum):
        return Message(datum.value * 2, keys=[*datum.keys, "twice"])

    with MemorySource([b"1", Sample(b"2", keys=("k",))]) as source, MemorySink() as sink:
        pipeline = Pipeline("test").source("in", source.code).map("double", double)
        summary = pipeline.sink("out", sink.code).run(drain=True, state=tmp_path)

    assert summary.ended == "drained"
    assert sorted(sink.values) == [b"11", b"22"]
    assert {one.value: one.keys for one in sink.landed} == {
        b"11": ("twice",),
        b"22": ("k", "twice"),
    }
    assert source.unsettled == 0
