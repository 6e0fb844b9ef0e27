"""A whole run over TLS with creds and the least permissions; no secret is left in any text.

A signal to its driver alone, as a service manager sends it, ends it gracefully.
"""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from itertools import chain
from pathlib import Path

import pytest

from ebbflow.runtime.provision import permissions_of
from ebbflow.spec.lint import load
from tests.nats.securing import Authority, Operator, nats_server
from tests.ports import free_port

pytestmark = pytest.mark.slow


def secrets_in(creds: str) -> list[str]:
    """The seed, the signature of the JWT, and a part of the seed, which is enough to notice."""
    seed = re.search(r"SU[A-Z0-9]{20,}", creds)[0]
    signature = re.search(r"\.([\w-]{40,})\n", creds)[1]
    return [seed, signature, seed[2:20]]


def shown_by_spark(port: int) -> str:
    """The pages of Spark's web UI about its environment, jobs and executors."""

    def get(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=120) as answer:
            return answer.read().decode()

    app = json.loads(get("api/v1/applications"))[0]["id"]
    pages = ("environment", "jobs", "stages?details=true", "executors", "sql?details=true")
    texts = [get(f"api/v1/applications/{app}/{page}") for page in pages]
    return "".join([*texts, get("environment/"), get("SQL/")])


def everything_under(folder: Path) -> str:
    files = (file for file in folder.rglob("*") if file.is_file())
    return "".join(file.read_text(errors="replace") for file in files)


@pytest.mark.long
@pytest.mark.guarantee("a-stop-loses-no-work")
@pytest.mark.guarantee("secrets-are-in-no-text")
def test_a_run_over_tls_with_creds_leaves_no_secret_in_any_text(whole, tmp_path_factory):
    whole.write({"rpu": 200})
    allowed = permissions_of(load(whole.folder / "pipeline.yaml"))
    lists = {
        kind: {"allow": list(chain.from_iterable(groups.values()))}
        for kind, groups in (("pub", allowed.publish), ("sub", allowed.subscribe))
    }
    server, keys = tmp_path_factory.mktemp("server"), tmp_path_factory.mktemp("keys")
    authority, operator = Authority(), Operator()
    creds = operator.creds(**lists)
    (keys / "me.creds").write_text(creds)
    (keys / "ca.pem").write_text(authority.pem)
    ui = free_port()
    # All the permissions are in the creds, which are sent on one line.
    config = operator.config + authority.tls_block(server, "localhost") + "max_control_line: 64KB"
    with nats_server(server, config) as port:
        process = whole.start(
            *("--plain", "--summary", "s.json", "--nats", f"tls://localhost:{port}"),
            *("--spark-ui", "--conf", f"spark.ui.port={ui}"),
            EBBFLOW_NATS_CREDS_FILE=str(keys / "me.creds"),
            EBBFLOW_NATS_CA_FILE=str(keys / "ca.pem"),
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{free_port()}",
            OTEL_EXPORTER_OTLP_HEADERS="api-key=key-of-the-collector",
        )
        whole.wait_until(lambda: len(whole.stored()) >= 200, process)
        spark = shown_by_spark(ui)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=300)

    assert process.returncode == 0, output
    assert "stopped after" in output
    numbers = whole.stored()
    assert numbers == list(range(len(numbers)))
    marks = whole.marks()  # one pair, or more if a slow machine gave the sink another task
    assert marks == sorted(["closed", "opened"] * (len(marks) // 2)) != []
    counts = json.loads((whole.folder / "s.json").read_text())["vertices"]
    assert counts["out"]["done"] == len(numbers)
    assert f"Spark's web UI is at http://127.0.0.1:{ui}\n" in output
    assert '"description" : "in, work, out, epoch 1"' in spark
    for secret in [*secrets_in(creds), "key-of-the-collector"]:
        for text in (output, spark, everything_under(whole.folder)):
            assert secret not in text
