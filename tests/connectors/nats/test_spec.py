"""The NATS connectors in a spec: what is allowed, what is not, and how secrets are handled."""

from __future__ import annotations

import pickle

import pytest

from ebbflow import Pipeline
from ebbflow.connectors import JetStream, Log
from ebbflow.domain.errors import SetupError, SpecError
from ebbflow.nats.login import Addresses
from ebbflow.runtime.planning import make_plans

HEAD = """apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: shop}
spec:
  vertices:
"""
EDGES = "  edges: [{from: in, to: out}]\n"


def with_source(fields: str) -> str:
    source = f"    - name: in\n      source: {{{fields}}}\n"
    return f"{HEAD}{source}    - {{name: out, sink: {{log: {{}}}}}}\n{EDGES}"


def with_sink(fields: str) -> str:
    sink = f"    - name: out\n      sink: {{{fields}}}\n"
    return f"{HEAD}    - {{name: in, source: {{generator: {{}}}}}}\n{sink}{EDGES}"


def located(text: str, reported: str, at: str) -> tuple[str, str]:
    """The problem, and as much of the text at its position as is to be compared."""
    line, column, problem = reported.split(":", 2)
    start = int(column) - 1
    return problem.strip(), text.splitlines()[int(line) - 1][start : start + len(at)]


URL = "url: nats://localhost:4222"


@pytest.mark.parametrize(
    "fields",
    [
        f"jetstream: {{{URL}, stream: ORDERS}}",
        f"jetstream: {{{URL}, stream: ORDERS, consumer: mine, deliverPolicy: new, ackWait: 10s}}",
        # As Numaflow spells them.
        f"jetstream: {{{URL}, stream: O, deliver_policy: last, filter_subjects: [a.b, 'c.*.>']}}",
        "jetstream: {url: 'nats://one:4222,nats://two:4222', stream: ORDERS}",
        f"jetstream: {{{URL}, stream: O, deliverPolicy: by_start_sequence 17}}",
        f"jetstream: {{{URL}, stream: O, deliverPolicy: by_start_time 1753428483000}}",
        f"nats: {{{URL}, subject: 'orders.>', queue: workers}}",
        f"nats: {{{URL}, subject: a, auth: {{creds: {{file: my.creds}}}}, tls: {{}}}}",
    ],
)
def test_valid_sources_have_no_problems(problems_of, fields):
    assert problems_of(with_source(fields)) == []


@pytest.mark.parametrize(
    "fields",
    [
        f"jetstream: {{{URL}, subject: orders.new}}",
        f"jetstream: {{{URL}, subjectHeader: To, ackWait: 2s}}",
        f"nats: {{{URL}, subject: orders.new, subjectHeader: To}}",
        f"log: {{}}, fallback: {{jetstream: {{{URL}, subject: failed}}}}",
    ],
)
def test_valid_sinks_have_no_problems(problems_of, fields):
    assert problems_of(with_sink(fields)) == []


@pytest.mark.parametrize(
    ("fields", "at", "problem"),
    [
        ("jetstream: {stream: A}", "{", "EB102 'url' is missing"),
        (f"jetstream: {{{URL}}}", "{", "EB102 'stream' is missing"),
        (
            "jetstream: {url: 'http://x', stream: A}",
            "'http://x'",
            "EB104 'url': 'http://x' is not a NATS URL; write for example nats://localhost:4222",
        ),
        (
            "jetstream: {url: 'nats://me:secret@x', stream: A}",
            "'nats://me",
            "EB109 'url': a login does not belong in the URL; name it in auth",
        ),
        (
            f"jetstream: {{{URL}, stream: a.b}}",
            "a.b",
            "EB104 'stream': 'a.b' is not a JetStream name: it has no spaces, dots, "
            "slashes, * and >",
        ),
        (
            f"jetstream: {{{URL}, stream: A, deliverPolicy: newest}}",
            "newest",
            "EB104 'deliverPolicy': must be all, new, last, last_per_subject, "
            "'by_start_sequence NUMBER' or 'by_start_time MILLISECONDS', not 'newest'",
        ),
        (
            f"jetstream: {{{URL}, stream: A, filterSubjects: [a..b]}}",
            "a..b",
            "EB104 'filterSubjects[0]': 'a..b' is not a subject",
        ),
        (
            f"jetstream: {{{URL}, stream: A, ackWait: 30}}",
            "30",
            "EB105 'ackWait': 30 has no unit; write for example 1s",
        ),
        (
            f"jetstream: {{{URL}, stream: A, maxDeliver: 3}}",
            "maxDeliver",
            "EB101 unknown field 'maxDeliver'; did you mean 'deliverPolicy'?",
        ),
        (
            f"nats: {{{URL}, subject: a, auth: {{token: {{env: A}}, nkey: {{env: B}}}}}}",
            "{token",
            "EB104 'auth': write exactly one of basic, token, nkey, creds",
        ),
        (
            f"nats: {{{URL}, subject: a, auth: {{token: hunter2}}}}",
            "hunter2",
            "EB109 'token': the secret itself does not belong here; write env: NAME, "
            "file: PATH, or name: SECRET with key: KEY",
        ),
        (
            f"nats: {{{URL}, subject: a, auth: {{token: {{name: ../s, key: k}}}}}}",
            "../s",
            "EB107 'name': '../s' is not the name of a resource",
        ),
        (
            f"nats: {{{URL}, subject: a, tls: {{insecureSkipVerify: true}}}}",
            "{insecure",
            "EB104 'tls': certificates are always checked; name the authority's certificate as "
            "caCertSecret in place of insecureSkipVerify",
        ),
    ],
)
def test_a_problem_of_a_source_is_reported_with_its_position(problems_of, fields, at, problem):
    text = with_source(fields)
    (reported,) = problems_of(text)
    assert located(text, reported, at) == (problem, at)
    assert "secret@" not in reported
    assert "hunter2" not in reported


@pytest.mark.parametrize(
    ("fields", "at", "problem"),
    [
        (f"nats: {{{URL}}}", "{url", "EB102 'nats': write subject, subjectHeader or both"),
        (
            f"nats: {{{URL}, subject: 'a.*'}}",
            "'a.*'",
            "EB104 'subject': 'a.*' is not a subject to publish to",
        ),
        (
            f"nats: {{{URL}, subjectHeader: 'a b'}}",
            "'a b'",
            "EB104 'subjectHeader': 'a b' is not a header",
        ),
    ],
)
def test_a_problem_of_a_sink_is_reported_with_its_position(problems_of, fields, at, problem):
    text = with_sink(fields)
    (reported,) = problems_of(text)
    assert located(text, reported, at) == (problem, at)


@pytest.mark.parametrize("given", ["hunter2", "7355608", "[hunter2]"])
@pytest.mark.parametrize(
    "fields",
    [
        f"nats: {{{URL}, subject: a, auth: HERE}}",
        f"nats: {{{URL}, subject: a, auth: {{basic: HERE}}}}",
        f"nats: {{{URL}, subject: a, auth: {{token: HERE}}}}",
        f"jetstream: {{{URL}, stream: A, tls: HERE}}",
        "nats: HERE",
        "http: {auth: HERE}",
        "http: {auth: {token: HERE}}",
        "kafka: {brokers: [a], topic: t, consumerGroup: g, sasl: HERE}",
        "kafka: {brokers: [a], topic: t, consumerGroup: g, sasl: {mechanism: PLAIN, plain: HERE}}",
    ],
)
def test_a_secret_in_the_place_of_its_section_is_not_shown(problems_of, fields, given):
    reported = problems_of(with_source(fields.replace("HERE", given)))
    assert reported
    assert "hunter2" not in "".join(reported)
    assert "7355608" not in "".join(reported)


def test_an_invalid_section_hides_no_other_problem(problems_of):
    text = with_source(f"jetstream: {{{URL}}}").replace("to: out", "to: nowhere")
    assert [line.split()[1] for line in problems_of(text)] == ["EB102", "EB305", "EB301"]


# --- in Python ------------------------------------------------------------------------------------


def plans_of(pipeline):
    return make_plans(pipeline.spec, Addresses.of("nats://localhost"), 1_000_000, None)


def settings_of(plan):
    code = plan.source.code if plan.is_source else plan.role.primary.code
    return pickle.loads(pickle.dumps(code.args[0]))


def source(**fields):
    given = {"url": "nats://127.0.0.1:4222", "stream": "ORDERS"} | fields
    return plans_of(Pipeline("shop").source("in", JetStream(**given)).sink("out", Log()))[0]


def test_builders_accept_snake_case_field_names():
    one = settings_of(source(filter_subjects=["a.b"], ack_wait="10s", deliver_policy="new"))
    assert (one.durable.name, one.durable.ack_wait) == ("ebbflow-shop-in", 10.0)


def test_builders_report_a_missing_field():
    with pytest.raises(SpecError, match="'stream' is missing"):
        Pipeline("shop").source("in", JetStream(url="nats://x", subject="s"))


def test_secrets_are_read_when_plans_are_made_and_never_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("NATS_USER", "me")
    (tmp_path / "password").write_text("hunter2\n")
    auth = {
        "basic": {
            "user": {"env": "NATS_USER"},
            "password": {"file": str(tmp_path / "password")},
        }
    }

    plan = source(auth=auth)

    login = settings_of(plan).server.login
    assert (login.user, login.password) == ("me", "hunter2")
    assert "hunter2" not in repr(plan)


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        (
            {"env": "NOT_SET"},
            "The variable NOT_SET is not set. It must hold the token for source in.",
        ),
        (
            {"file": "/not/there"},
            "/not/there cannot be read: No such file or directory. "
            "It must hold the token for source in.",
        ),
    ],
)
def test_a_missing_secret_is_reported(where, problem):
    with pytest.raises(SetupError) as raised:
        source(auth={"token": where})
    assert str(raised.value) == problem


def test_an_invalid_login_is_reported_without_showing_it(monkeypatch):
    monkeypatch.setenv("SEED", "not a seed")
    with pytest.raises(SetupError, match="The login for source in cannot work: nkey") as raised:
        source(auth={"nkey": {"env": "SEED"}})
    assert "not a seed" not in str(raised.value)


def test_tls_in_the_spec_is_required():
    assert source(tls={}).source.code.args[0].server.wants_tls
    assert not source().source.code.args[0].server.wants_tls
