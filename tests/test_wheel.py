"""The wheel has what users need, works where it is unpacked, and has nothing of the workshop."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith("dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def test_it_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ebbflow"}
    assert {"ebbflow/py.typed", "ebbflow/cli/demo/pipeline.yaml", "ebbflow/cli/demo/steps.py"} <= {
        *wheel.namelist()
    }


def test_it_holds_the_page_with_the_licences_of_what_it_uses(wheel: zipfile.ZipFile) -> None:
    static = ROOT / "src/ebbflow/ui/static"
    page = {str(path.relative_to(ROOT / "src")) for path in static.rglob("*") if path.is_file()}
    assert page <= {*wheel.namelist()}
    assert {"preact.LICENSE.txt", "htm.LICENSE.txt"} <= {Path(name).name for name in page}


def test_client_functions_http_kafka_and_traces_are_extras(wheel: zipfile.ZipFile) -> None:
    required = metadata(wheel).get_all("Requires-Dist", [])
    optional = [line for line in required if "extra ==" in line]
    assert {re.split(r"[<>=]", line)[0].strip() for line in optional} == {
        *("confluent-kafka", "cryptography", "httpx"),
        *("grpcio", "hpack", "protobuf"),
        *("opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk"),
    }
    assert metadata(wheel).get_all("Provides-Extra") == ["client", "grpc", "http", "kafka", "otel"]


def test_it_says_where_the_project_is(wheel: zipfile.ZipFile) -> None:
    urls = dict(line.split(", ") for line in metadata(wheel).get_all("Project-URL", []))
    assert urls.keys() == {"Documentation", "Source", "Changelog"}
    assert all(url.startswith("https://github.com/ebbflow/ebbflow") for url in urls.values())


def test_its_commands_find_their_files(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    pipeline = tmp_path / "ebbflow/cli/demo/pipeline.yaml"
    command = [sys.executable, "-P", "-m", "ebbflow", "lint", str(pipeline)]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1 file ok\n", done.stderr
