"""``ebbflow ui``: the web UI of a state folder, until the user ends it."""

import json
import re
import signal
import subprocess
import sys
import urllib.request

from typer.testing import CliRunner

from ebbflow.cli.main import app
from ebbflow.nats.locate import open_link, start_embedded
from tests.deadletters.written import Written


def test_the_web_ui_prints_its_address_lists_pipelines_and_ends_on_a_signal(tmp_path):
    with start_embedded(tmp_path) as server, open_link(server) as link:
        Written(link, "orders")
    command = [sys.executable, "-m", "ebbflow", "ui", "--state", str(tmp_path), "--listen", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ui:
        line = ui.stdout.readline()
        (address,) = re.findall(r"^The web UI is at (http://127\.0\.0\.1:\d+/)$", line.strip())
        with urllib.request.urlopen(f"{address}api/pipelines", timeout=120) as answer:
            names = [entry["name"] for entry in json.load(answer)["pipelines"]]
        assert names == ["orders"]
        ui.send_signal(signal.SIGINT)
        _, errors = ui.communicate(timeout=300)
    assert (ui.returncode, errors) == (0, "Ctrl-C ends it; pipelines continue.\n")


def test_a_folder_without_pipelines_is_reported(tmp_path):
    result = CliRunner().invoke(app, ["ui", "--state", str(tmp_path / "none")])
    assert result.exit_code == 3
    assert result.stderr == (
        f"ebbflow: There is no state folder {tmp_path / 'none'}: no pipeline has run here. "
        "Change to the folder it was run in, or name its state with --state DIR.\n"
    )
