import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ebbflow.cli.main import app
from ebbflow.nats.locate import open_link_to_pipeline, start_embedded
from tests.deadletters.written import Written

Dlq = Callable[..., Result]


@pytest.fixture
def dlq(state: Path, pipeline: Written) -> Dlq:
    """``ebbflow dlq COMMAND`` on the test's own pipeline."""

    def invoke(command: str, *args: str, input: str | None = None) -> Result:
        given = ["dlq", command, pipeline.name, *args, "--state", str(state)]
        return CliRunner().invoke(app, given, input=input)

    return invoke


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│\n").split("│")]


def left(pipeline: Written) -> list[int]:
    return [stored.number for stored in pipeline.letters.list()]


def test_list_prints_a_row_for_each_letter(pipeline: Written, dlq: Dlq) -> None:
    pipeline.bury(error="ValueError: " + "x" * 80)
    result = dlq("list")
    rows = [cells(line) for line in result.stdout.splitlines() if line.startswith("│")]
    cut = "ValueError: " + "x" * 47 + "…"
    assert rows == [["1", "enrich", "in-7", "6", "ValueError", cut, "2026-05-17 12:01:00"]]
    assert result.stdout.endswith("\n1 dead letter\n")
    assert result.exit_code == 0


def test_list_says_how_to_see_more(pipeline: Written, dlq: Dlq) -> None:
    for _ in range(3):
        pipeline.bury()
    result = dlq("list", "--limit", "2")
    assert result.stdout.endswith("\n2 of 3 dead letters; see more with --limit 3\n")


def test_list_of_nothing_is_one_line(pipeline: Written, dlq: Dlq) -> None:
    assert dlq("list").stdout == "0 dead letters\n"
    pipeline.bury()
    assert dlq("list", "--vertex", "enrihc").stdout == (
        "0 dead letters of vertex 'enrihc'; others have some: enrich (1)\n"
    )


def test_list_as_json_is_one_object_a_line(pipeline: Written, dlq: Dlq) -> None:
    pipeline.bury()
    pipeline.bury(id="in-8", event_time=None)
    first, second = map(json.loads, dlq("list", "--json").stdout.splitlines())
    assert first == {
        "number": 1,
        "id": "in-7",
        "vertex": "enrich",
        "reason": "ValueError",
        "error": "ValueError: no customer",
        "deliveries": 6,
        "first_seen": "2026-05-17T12:00:00.250000+00:00",
        "last_seen": "2026-05-17T12:01:00.250000+00:00",
        "event_time": "2026-05-17T11:00:00.250000+00:00",
        "keys": ["berlin", "7"],
        "size": None,
        "unread": False,
    }
    assert (second["number"], second["event_time"]) == (2, None)


def test_show_tells_everything(pipeline: Written, dlq: Dlq) -> None:
    pipeline.bury()
    assert dlq("show", "1").stdout == (
        "number:      1\n"
        "vertex:      enrich\n"
        "id:          in-7\n"
        "reason:      ValueError\n"
        "error:       ValueError: no customer\n"
        "deliveries:  6\n"
        "first seen:  2026-05-17 12:00:00\n"
        "last seen:   2026-05-17 12:01:00\n"
        "event time:  2026-05-17 11:00:00\n"
        "keys:        berlin, 7\n"
        "header trace: abc\n"
        "metadata shop.shelf: 00 01\n"
        "traceback:\n"
        "  Traceback (most recent call last):\n"
        "    …\n"
        "  ValueError: no customer\n"
        "value (12 bytes):\n"
        '  {"order": 7}\n'
    )


def test_show_writes_bytes_that_are_no_text_in_hex(pipeline: Written, dlq: Dlq) -> None:
    pipeline.bury(value=bytes(range(200, 220)), size=5_000, traceback=None)
    assert dlq("show", "in-7").stdout.endswith(
        "value (20 bytes, cut from 5,000):\n"
        "  c8 c9 ca cb cc cd ce cf d0 d1 d2 d3 d4 d5 d6 d7\n"
        "  d8 d9 da db\n"
    )


def test_show_as_json_has_the_whole_value(pipeline: Written, dlq: Dlq) -> None:
    pipeline.bury(value="grün".encode() * 2000)
    facts = json.loads(dlq("show", "1", "--json").stdout)
    assert facts["value"] == "grün" * 2000
    assert facts["metadata"] == {"shop": {"shelf": "\x00\x01"}}
    pipeline.bury(value=b"\xff")
    assert json.loads(dlq("show", "2", "--json").stdout)["value"] == {"base64": "/w=="}


def test_nothing_in_a_letter_reaches_the_terminal_as_a_command(pipeline: Written, dlq: Dlq) -> None:
    evil = "\x1b[2J[bold]"
    pipeline.bury(id=evil, error=evil, value=evil.encode(), headers={evil: evil}, keys=[evil])
    for result in (dlq("list"), dlq("show", "1")):
        assert "\x1b" not in result.stdout
        assert r"\x1b[2J[bold]" in result.stdout


def test_replay_sends_back_what_is_named(pipeline: Written, dlq: Dlq) -> None:
    for n in range(3):
        pipeline.bury(id=f"in-{n}")
    assert dlq("replay", "1", "in-2").stdout == "2 dead letters sent back\n"
    assert left(pipeline) == [2]
    assert dlq("replay", "--all", "--dry-run").stdout == "1 dead letter can be replayed\n"
    assert dlq("replay", "--vertex", "enrich").stdout == "1 dead letter sent back\n"
    assert len(pipeline.due()) == 3


@pytest.mark.parametrize("command", ["replay", "purge"])
@pytest.mark.parametrize("args", [(), ("1", "--all"), ("1", "--vertex", "enrich")])
def test_letters_are_named_in_exactly_one_way(dlq: Dlq, command: str, args: tuple[str]) -> None:
    result = dlq(command, *args)
    assert result.exit_code == 2
    assert "name letters by number or id, or say --all or --vertex NAME, not both" in result.stderr


def test_a_replay_that_is_refused_exits_with_3(pipeline: Written, dlq: Dlq) -> None:
    pipeline.bury(size=9_000_000)
    result = dlq("replay", "1")
    assert result.exit_code == 3
    assert result.stderr.startswith("ebbflow: Replayed 0, but not these:\n  1: the value was cut")
    assert left(pipeline) == [1]


def test_purge_asks_first(pipeline: Written, dlq: Dlq) -> None:
    pipeline.bury()
    question = f"Delete 1 dead letter of {pipeline.name} for good? [y/N]: "
    refused = dlq("purge", "--all", input="n\n")
    assert refused.stdout == f"{question}n\nNothing was deleted.\n"
    assert left(pipeline) == [1]
    agreed = dlq("purge", "1", input="y\n")
    assert agreed.stdout == f"{question}y\n1 dead letter deleted\n"
    assert left(pipeline) == []


def test_purge_without_anybody_to_ask_needs_yes(pipeline: Written, dlq: Dlq) -> None:
    pipeline.bury()
    assert dlq("purge", "--all", input="").exit_code == 2
    assert left(pipeline) == [1]
    assert dlq("purge", "--vertex", "enrich", "--yes").stdout == "1 dead letter deleted\n"
    assert left(pipeline) == []


def test_an_unknown_letter_or_pipeline_exits_with_3(pipeline: Written, state: Path) -> None:
    for args in (["show", pipeline.name, "7"], ["list", "nothing"], ["purge", "no", "--all"]):
        result = CliRunner().invoke(app, ["dlq", *args, "--state", str(state)])
        assert result.exit_code == 3
        assert result.stderr.startswith("ebbflow: ")
        assert "Traceback" not in result.output


def test_a_folder_where_nothing_ran_is_not_created(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    result = CliRunner().invoke(app, ["dlq", "list", "orders", "--state", str(folder)])
    assert result.exit_code == 3
    assert result.stderr == (
        f"ebbflow: There is no state folder {folder}: no pipeline has run here. "
        "Change to the folder it was run in, or name its state with --state DIR.\n"
    )
    assert not folder.exists()


def test_letters_are_there_when_the_pipeline_does_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with start_embedded(folder), open_link_to_pipeline(folder, None) as link:
        Written(link, "orders").bury()
    result = CliRunner().invoke(app, ["dlq", "list", "orders", "--state", str(folder)])
    assert result.stdout.endswith("\n1 dead letter\n")
