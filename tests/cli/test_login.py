"""Logins as the command sees them: an error is one line that names the variable."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ebbflow.cli.main import app
from ebbflow.nats.link import Link
from tests.deadletters.written import Written

SECRET = "s3cr3t-that-nobody-sees"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"USER": "me"},
            "EBBFLOW_NATS_USER is given without EBBFLOW_NATS_PASSWORD; give both of them. "
            "Set or unset the variables and try again.",
        ),
        (
            {"CREDS_FILE": SECRET},
            "EBBFLOW_NATS_CREDS_FILE names a file that cannot be read: No such file or directory. "
            "Set or unset the variables and try again.",
        ),
        (
            {"TOKEN": SECRET, "URL": f"nats://me:{SECRET}@127.0.0.1:1"},
            "There are two logins for NATS: one in its URL, and next to it a token. "
            "Take it out of --nats or EBBFLOW_NATS_URL, or leave the other one out.",
        ),
    ],
)
@pytest.mark.parametrize("command", [["dlq", "list", "orders"], ["doctor"]])
def test_an_invalid_login_is_reported_in_one_line(
    environment: dict[str, str], expected: str, command: list[str]
) -> None:
    settings = {"URL": "nats://127.0.0.1:1"} | environment
    variables = {f"EBBFLOW_NATS_{name}": value for name, value in settings.items()}
    result = CliRunner().invoke(app, command, env=variables)
    assert result.exit_code == 3
    assert expected in " ".join(result.output.replace("→", "").split())
    assert "Traceback" not in result.output
    assert SECRET not in result.output


def test_the_login_in_the_environment_opens_the_users_own_server(
    pipeline: Written, link: Link, tmp_path: Path
) -> None:
    pipeline.bury()
    login, secret = link.server.login, tmp_path / "password"
    secret.write_text(f"{login.password}\n")
    environment = {
        "EBBFLOW_NATS_URL": str(link.server),
        "EBBFLOW_NATS_USER": str(login.user),
        "EBBFLOW_NATS_PASSWORD_FILE": str(secret),
    }
    result = CliRunner().invoke(app, ["dlq", "list", pipeline.name], env=environment)
    assert (result.exit_code, "1 dead letter" in result.output) == (0, True)
    secret.write_text(SECRET)
    result = CliRunner().invoke(app, ["dlq", "list", pipeline.name], env=environment)
    assert result.exit_code == 3
    assert result.output.startswith(f"ebbflow: NATS at {link.server} ")
    assert result.output.endswith("It was given a user and password: check that.\n")
    assert SECRET not in result.output


def test_the_embedded_server_ignores_a_login_in_the_environment(
    pipeline: Written, state: Path
) -> None:
    pipeline.bury()
    command = ["dlq", "list", pipeline.name, "--state", str(state)]
    result = CliRunner().invoke(app, command, env={"EBBFLOW_NATS_TOKEN": SECRET})
    assert (result.exit_code, "1 dead letter" in result.output) == (0, True)
