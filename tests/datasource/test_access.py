"""Logins: where they come from, the permissions they need, and that they are never shown."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from ebbflow.datasource import register
from ebbflow.domain.errors import DataSourceError, SetupError
from ebbflow.nats.link import Link
from ebbflow.nats.login import Addresses
from ebbflow.publishing import Login
from tests.datasource.conftest import Stream
from tests.datasource.planned import Run, planned
from tests.datasource.test_guide import GUIDE
from tests.nats.securing import nats_server

NEEDED = next(block.text.split() for block in GUIDE.blocks if "$JS.API" in block.text)


@contextlib.contextmanager
def allowed(folder: Path, *subjects: str) -> Iterator[tuple[Stream, str]]:
    """A stream ``ORDERS``, and a URL whose login may publish to these subjects only."""
    permissions = json.dumps({"publish": subjects, "subscribe": ["_INBOX.>"]})
    users = f"{{user: all, password: a}}, {{user: me, password: m, permissions: {permissions}}}"
    with nats_server(folder, f"authorization {{ users: [ {users} ] }}\n") as port:
        link = Link(Addresses.of(f"nats://all:a@127.0.0.1:{port}"))
        try:
            yield Stream(link, "ORDERS"), f"nats://me:m@127.0.0.1:{port}"
        finally:
            link.close()


def test_the_permissions_in_the_guide_are_enough(tmp_path):
    with allowed(tmp_path, *NEEDED) as (stream, url):
        stream.fill(20)
        stream.fill(5, on="other")
        options = {"url": url, "subject": "ORDERS.new"}
        assert planned(stream, partitions=2, **options) == [list(range(1, 13)), list(range(13, 21))]
        with Run(stream, maxMessagesPerBatch=7, **options) as run:
            assert sum(map(len, run.batches())) == 20
        assert stream.has_no_consumers_left()


@pytest.mark.parametrize("missing", [one for one in NEEDED if "DELETE" not in one])
def test_each_permission_is_needed_and_named_when_it_is_missing(tmp_path, missing):
    with allowed(tmp_path, *(one for one in NEEDED if one != missing)) as (stream, url):
        stream.fill(20)
        stream.delete(20)  # so that the leader has to report that nothing is left
        with pytest.raises(DataSourceError) as error:
            planned(stream, url=url)
    assert f"does not let this login publish to {missing.removesuffix('*')}" in str(error.value)
    assert str(error.value).endswith("Give it those in docs/guides/spark-data-source.md.")


def test_registering_again_replaces_the_address_and_the_login(spark, url, stream):
    stream.fill(3)
    frame = spark.read.format("jetstream").options(stream=stream.name)
    server = Addresses.of(url)
    wrong = Login(user=server.login.user, password="guess")
    try:
        register(spark, server.urls[0], wrong)
        with pytest.raises(PySparkException, match="refused the login"):
            frame.load().collect()
        register(spark, server.urls[0], server.login)
        assert len(frame.load().collect()) == 3
    finally:
        register(spark, url)


def test_an_invalid_environment_is_rejected_when_registering(spark, monkeypatch):
    monkeypatch.setenv("EBBFLOW_NATS_USER", "me")
    with pytest.raises(
        SetupError, match="EBBFLOW_NATS_USER is given without EBBFLOW_NATS_PASSWORD"
    ):
        register(spark)


@pytest.mark.long
def test_no_password_appears_in_a_plan_a_checkpoint_or_the_list_of_executions(
    spark, server, url, stream, tmp_path
):
    stream.fill(3)
    frame = spark.readStream.format("jetstream").options(stream=stream.name, url=url).load()
    writer = frame.select("data").writeStream.format("jetstream")
    writer = writer.options(url=url, subject=f"{stream.name}.copy")
    checkpoint = tmp_path / "checkpoint"
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    batch = spark.read.format("jetstream").options(stream=stream.name, url=url).load()
    batch.collect()

    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    shown = [executions.apply(n) for n in range(executions.size())]
    texts = [f"{one.description()} {one.physicalPlanDescription()}" for one in shown]
    texts += [
        batch._jdf.queryExecution().toString(),
        query._jsq.toString(),
        str(query.lastProgress),
    ]
    texts += [path.read_text(errors="replace") for path in checkpoint.rglob("*") if path.is_file()]
    assert shown
    assert not [text for text in texts if server.login.password in text]
