import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ebbflow.cli.main import app
from ebbflow.connectors import registry
from ebbflow.domain.errors import SetupError
from ebbflow.nats.link import Link
from tests.nats.securing import address


def test_a_ready_machine_gets_only_ticks(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--state", str(tmp_path / "state")])
    *findings, last = result.stdout.splitlines()
    assert (result.exit_code, last) == (0, "Ready.")
    assert all(line.startswith("✓ ") for line in findings)
    for word in ("Python 3", "Java", "pyspark 4", "embedded NATS server 2.", "state folder"):
        assert word in result.stdout
    assert not (tmp_path / "state").exists()


def test_each_problem_comes_with_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    # In a separate process, because each process asks Java for its version only once.
    result = subprocess.run(
        [Path(sys.executable).with_name("ebbflow"), "doctor", "--state", tmp_path / "file"],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 3
    problem, step = result.stdout.splitlines()[1:3]
    assert problem.startswith("✗ Spark needs Java")
    assert problem.endswith(f"in JAVA_HOME ({tmp_path}).")
    assert step.startswith("  → Install")
    assert f"✗ state folder {tmp_path / 'file'}\n  → It cannot be written" in result.stdout
    assert "Ready." not in result.stdout


def test_a_state_folder_in_use_is_shown_with_its_owner(state: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--state", str(state)])
    assert f"✓ state folder {state} is in use by process {os.getpid()}\n" in result.stdout


def test_the_users_own_server_is_tried_and_its_password_is_not_shown(link: Link) -> None:
    result = CliRunner().invoke(app, ["doctor"], env={"EBBFLOW_NATS_URL": address(link.server)})
    assert result.exit_code == 0
    assert f" at {link.server} (no TLS, a user and password)\n" in result.stdout
    assert str(link.server.login.password) not in result.output


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_reported_without_its_password() -> None:
    result = CliRunner().invoke(app, ["doctor", "--nats", "nats://me:secret@127.0.0.1:1"])
    assert result.exit_code == 3
    assert "nats://127.0.0.1:1" in result.stdout
    assert "secret" not in result.output


def test_a_login_is_tried_and_a_password_file_readable_by_everyone_is_mentioned(
    link: Link, tmp_path: Path
) -> None:
    login, secret = link.server.login, tmp_path / "secret"
    secret.write_text(str(login.password))
    environment = {
        "EBBFLOW_NATS_URL": str(link.server),
        "EBBFLOW_NATS_USER": str(login.user),
        "EBBFLOW_NATS_PASSWORD_FILE": str(secret),
    }
    for mode, mentioned in ((0o600, False), (0o644, True)):
        secret.chmod(mode)
        result = CliRunner().invoke(app, ["doctor"], env=environment)
        assert result.exit_code == 0
        assert "(no TLS, a user and password)" in result.stdout
        warning = "the file of EBBFLOW_NATS_PASSWORD_FILE can be read by every user of this machine"
        assert (warning in result.stdout) is mentioned
        assert str(login.password) not in result.output
    secret.write_text("wrong")
    result = CliRunner().invoke(app, ["doctor"], env=environment)
    assert result.exit_code == 3
    assert "check that" in result.stdout


def test_a_broken_connector_of_another_package_is_reported_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    problem = SetupError("The connector x of the package y cannot be loaded.", "Correct it.")
    monkeypatch.setattr(registry, "find_problems", lambda: iter([problem]))
    result = CliRunner().invoke(app, ["doctor", "--state", str(tmp_path / "state")])
    assert result.exit_code == 0
    assert "✓ The connector x of the package y cannot be loaded.\n  → Correct it." in result.stdout
