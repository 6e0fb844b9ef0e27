"""The HTTP source, the HTTP sink and the file sink in a spec: what is allowed and what is not."""

from __future__ import annotations

import pickle
import sys

import pytest
import trustme

from ebbflow import Backoff, Pipeline
from ebbflow.connectors import File, Generator, Http, Log
from ebbflow.connectors.file import FileSettings
from ebbflow.connectors.http.sink import BatchSettings, HttpSinkSettings
from ebbflow.connectors.http.source import HttpSourceSettings
from ebbflow.domain.errors import SetupError
from ebbflow.nats.login import Addresses
from ebbflow.runtime.planning import make_plans
from ebbflow.streams.feed import FeedPlan
from ebbflow.web.server import Endpoint

HEAD = """apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: web}
spec:
  vertices:
"""
EDGES = "  edges: [{from: in, to: out}]\n"


def with_source(fields: str) -> str:
    source = f"    - name: in\n      source: {{http: {fields}}}\n"
    return f"{HEAD}{source}    - {{name: out, sink: {{log: {{}}}}}}\n{EDGES}"


def with_sink(fields: str) -> str:
    sink = f"    - name: out\n      sink: {{{fields}}}\n"
    return f"{HEAD}    - {{name: in, source: {{generator: {{}}}}}}\n{sink}{EDGES}"


TLS = "{certSecret: {file: c.pem}, keySecret: {file: k.pem}}"


@pytest.mark.parametrize(
    "fields",
    [
        "{}",
        "{service: true}",
        "{host: 0.0.0.0, auth: {token: {env: TOKEN}}, ports: {http: 8000}}",
        "{ports: {https: 8444}}",
        f"{{tls: {TLS}}}",
        f"{{tls: {TLS}, ports: {{http: 80}}}}",
        f"{{tls: {TLS}, ports: {{https: 0}}, readTimeout: 5s, ackWait: 2s, maxInFlight: 10}}",
    ],
)
def test_a_valid_http_source_has_no_problems(problems_of, fields):
    assert problems_of(with_source(fields)) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("{port: 80}", "EB101 unknown field 'port'; did you mean 'ports'?"),
        (
            "{ports: {http: 80, https: 80}}",
            "EB104 'ports': http and https cannot have the same port",
        ),
        ("{ports: {http: 70000}}", "EB104 'http' must be at most 65535, not 70000"),
        (
            "{auth: {token: {name: secret, key: token, env: TOKEN}}}",
            "EB109 'token': one secret is in one place; write env: NAME, file: PATH, or name: "
            "SECRET with key: KEY",
        ),
        (
            "{host: 0.0.0.0}",
            "EB104 'http': anybody who can reach 0.0.0.0 could send; give it auth: {token: {env: "
            "NAME}}",
        ),
        (
            "{readTimeout: 0s}",
            "EB105 'readTimeout': must be longer than 0; write for example 250ms",
        ),
    ],
)
def test_an_invalid_http_source_is_reported(problems_of, fields, problem):
    assert [line.split(": ", 1)[1] for line in problems_of(with_source(fields))] == [problem]


@pytest.mark.parametrize(
    "fields",
    [
        "http: {url: 'https://example.org/take'}",
        "http: {url: 'http://127.0.0.1:1', method: PUT, headers: {X-A: b}, timeout: 1s, batch: {}}",
        "http: {url: 'http://a', auth: {basic: {user: {env: U}, password: {file: p}}}}",
        "http: {url: 'https://a', tls: {caCertSecret: {file: ca.pem}}, concurrency: 1}",
        "file: {path: out.txt}",
        "file: {path: '/tmp/{pipeline}/{vertex}-{partition}.jsonl', format: json, maxBytes: 1000}",
        "log: {}, fallback: {file: {path: aside.txt}}, onSuccess: {http: {url: 'http://a'}}",
    ],
)
def test_a_valid_sink_has_no_problems(problems_of, fields):
    assert problems_of(with_sink(fields)) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("http: {}", "EB102 'url' is missing"),
        (
            "http: {url: 'ftp://a'}",
            "EB104 'url': must begin with http:// or https:// and name a host",
        ),
        (
            "http: {url: 'http://me:secret@a'}",
            "EB109 'url': a login does not belong in the URL; name it in auth",
        ),
        (
            "http: {url: 'http://a', headers: {Authorization: Bearer x}}",
            "EB109 'headers': a login does not belong here; write it as auth",
        ),
        (
            "http: {url: 'http://a', headers: {'a b': c}}",
            "EB104 'headers': 'a b' is not a header name",
        ),
        ("http: {url: 'http://a', auth: {}}", "EB104 'auth': write exactly one of token and basic"),
        (
            "http: {url: 'http://a', method: GET}",
            "EB104 'method' must be 'POST', 'PUT' or 'PATCH', not 'GET'",
        ),
        ("file: {}", "EB102 'path' is missing"),
        ("file: {path: ' '}", "EB104 'path': must be the path of a file"),
        ("file: {path: out/}", "EB104 'path': must be the path of a file"),
        (
            "file: {path: '{date}.txt'}",
            "EB104 'path': '{date}' is not a placeholder; "
            "the placeholders are {pipeline}, {vertex}, {partition}",
        ),
        ("file: {path: a, maxBytes: 0}", "EB104 'maxBytes' must be at least 1, not 0"),
    ],
)
def test_an_invalid_sink_is_reported(problems_of, fields, problem):
    assert [line.split(": ", 1)[1] for line in problems_of(with_sink(fields))] == [problem]


# --- plans --------------------------------------------------------------------------------------


def planned(pipeline):
    return make_plans(pipeline.spec, Addresses.of("nats://localhost"), 1_000_000, None)


def test_the_settings_of_a_source_contain_its_secrets(tmp_path, monkeypatch):
    issued = trustme.CA().issue_cert("localhost")
    (tmp_path / "c.pem").write_bytes(issued.cert_chain_pems[0].bytes())
    (tmp_path / "k.pem").write_bytes(issued.private_key_pem.bytes())
    monkeypatch.setenv("TOKEN", "open sesame")
    tls = {"cert_secret": {"file": str(tmp_path / "c.pem")}}
    tls |= {"key_secret": {"file": str(tmp_path / "k.pem")}}
    http = {"auth": {"token": {"env": "TOKEN"}}, "tls": tls, "ack_wait": "2s"}

    source, _ = planned(Pipeline("web").source("in", Http(**http)).sink("out", Log()))

    settings = source.source.settings
    assert isinstance(settings, HttpSourceSettings)
    (endpoint,) = settings.endpoints
    assert (endpoint.host, endpoint.port, endpoint.optional) == ("127.0.0.1", 8443, False)
    assert endpoint.certificate.chain.startswith("-----BEGIN CERTIFICATE-----")
    assert (settings.token.reveal(), settings.ack_wait) == ("open sesame", 2.0)
    assert "sesame" not in repr(source)
    assert source.streams.has_buffer


@pytest.mark.parametrize(
    ("ports", "endpoints"),
    [
        ({}, [Endpoint("127.0.0.1", 8443, self_signed=True)]),
        ({"https": 0}, [Endpoint("127.0.0.1", 0, self_signed=True)]),
        (
            {"http": 8090},
            [
                Endpoint("127.0.0.1", 8090),
                Endpoint("127.0.0.1", 8443, self_signed=True, optional=True),
            ],
        ),
        (
            {"http": 8090, "https": 8443},
            [Endpoint("127.0.0.1", 8090), Endpoint("127.0.0.1", 8443, self_signed=True)],
        ),
    ],
)
def test_a_source_listens_on_numaflows_port_but_on_this_machine_only(ports, endpoints):
    http = {"ports": ports} if ports else {}
    source, _ = planned(Pipeline("web").source("in", Http(**http)).sink("out", Log()))
    assert source.source.settings.endpoints == tuple(endpoints)


def test_a_missing_secret_is_reported_at_the_start():
    http = {"auth": {"token": {"env": "NO_SUCH_TOKEN"}}}
    with pytest.raises(SetupError) as raised:
        planned(Pipeline("web").source("in", Http(**http)).sink("out", Log()))
    assert str(raised.value) == (
        "The variable NO_SUCH_TOKEN is not set. It must hold the token of the http source in."
    )


def test_an_invalid_certificate_is_reported_at_the_start(tmp_path):
    (tmp_path / "ca.pem").write_text("no certificate")
    http = {"url": "https://a", "tls": {"ca_cert_secret": {"file": str(tmp_path / "ca.pem")}}}
    with pytest.raises(SetupError) as raised:
        planned(Pipeline("web").source("in", Generator()).sink("out", Http(**http)))
    assert str(raised.value) == (
        "The tls of the http sink to https://a: is not a certificate in PEM form. "
        "Correct its files."
    )


def test_the_settings_of_sinks_follow_their_spec(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    http = {"url": "http://a", "headers": {"X-A": "b"}, "batch": {"size": 7}, "timeout": "3s"}
    pipeline = Pipeline("web").source("in", Generator())
    fallback = File(path="x")
    pipeline = pipeline.sink("out", Http(**http), retry=Backoff("1s"), fallback=fallback)

    sinks = planned(pipeline)[1].role

    (sink,) = sinks.primary.code.args
    assert sink == HttpSinkSettings(
        "http://a", headers=(("X-A", "b"),), timeout=3.0, batch=BatchSettings(size=7)
    )
    (aside,) = sinks.fallback.code.args
    assert aside == FileSettings(str(tmp_path / "x"))


def test_a_missing_extra_is_reported_with_the_command_to_install_it(monkeypatch):
    pipeline = Pipeline("web").source("in", Http()).sink("out", Log())
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(SetupError) as raised:
        planned(pipeline)
    assert str(raised.value) == (
        "The http source needs a package that is not installed. Run: pip install 'ebbflow[http]'"
    )


def test_the_server_for_posts_stays_on_the_driver(monkeypatch):
    monkeypatch.setenv("TOKEN", "open sesame")
    http = {"auth": {"token": {"env": "TOKEN"}}}
    plan, _ = planned(Pipeline("web").source("in", Http(**http)).sink("out", Log()))

    shipped = pickle.dumps(plan)

    assert b"sesame" not in shipped
    assert b"connectors.http" not in shipped
    assert pickle.loads(shipped).source == FeedPlan(None, None)
