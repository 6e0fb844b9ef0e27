"""The conformance suite: one list of rules that every source and every sink has to pass.

It runs real pipelines, on local Spark with an embedded NATS server, against the real system that
the connector talks to. With pytest each rule is its own test::

    @pytest.fixture(scope="module")
    def trial(tmp_path_factory):
        with SourceTrial(MyQueueUnderTest(), tmp_path_factory.mktemp("queue")) as trial:
            yield trial

    @pytest.mark.parametrize("rule", SOURCE_RULES)
    def test_my_queue(rule, trial):
        rule(trial)

The trial goes only as far as the rules that are checked need it. ``check_source`` does all of it at
once. ``ebbflow.testing`` exports what authors of connectors use; only tests import this package.
Start with ``rules``.
"""
