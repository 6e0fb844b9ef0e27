"""The serving source keeps the rules that all sources keep."""

from __future__ import annotations

import pytest

from ebbflow.connectors import Ports, Serving
from ebbflow.testing import SOURCE_RULES, SourceTrial
from tests.conformance.conftest import PATIENCE
from tests.conformance.test_http_connectors import HttpSourceUnderTest

pytestmark = pytest.mark.slow


class ServingSourceUnderTest(HttpSourceUnderTest):
    """Callers that send requests one by one, and never fetch the answers."""

    path = "/v1/process/async"
    lines = 1
    flood = 1_000

    def source(self):
        return Serving(ports=Ports(http=self.port))


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    with SourceTrial(
        ServingSourceUnderTest(), tmp_path_factory.mktemp("serving"), PATIENCE
    ) as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SOURCE_RULES)
def test_the_serving_source_keeps_every_rule(rule, trial):
    rule(trial)
