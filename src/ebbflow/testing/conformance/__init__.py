"""The conformance suite: the rules that every source and every sink has to pass.

It runs real pipelines, on local Spark with an embedded NATS server, against the real system that
the connector talks to. With pytest each rule is its own test::

    @pytest.fixture(scope="module")
    def trial(tmp_path_factory):
        with SourceTrial(MyQueueUnderTest(), tmp_path_factory.mktemp("queue")) as trial:
            yield trial

    @pytest.mark.parametrize("rule", SOURCE_RULES)
    def test_my_queue(rule, trial):
        rule(trial)

The trial runs only the stages that the checked rules need. ``check_source`` checks all rules at
once. ``ebbflow.testing`` exports what connector authors use; only tests import this package.
Start with ``rules``.
"""
