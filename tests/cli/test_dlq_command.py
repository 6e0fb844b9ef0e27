import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ebbflow.cli.main import app
from ebbflow.engine import frames
from ebbflow.engine.frames import Rows
from ebbflow.nats.locate import open_link_to_pipeline, start_embedded
from tests.deadletters.written import NOON, Written

Dlq = Callable[..., Result]
REPLAYED = {"Ebbflow-Replays": "2", "Ebbflow-History": "nonsense"}


@pytest.fixture
def dlq(state: Path, pipeline: Written) -> Dlq:
    """``ebbflow dlq COMMAND`` on the test's own pipeline."""

    def invoke(command: str, *args: str, input: str | None = None) -> Result:
        words = ["dlq", command, pipeline.name, *args, "--state", str(state)]
        return CliRunner().invoke(app, words, input=input)

    return invoke


def remaining(pipeline: Written) -> list[int]:
    return [stored.number for stored in pipeline.letters.list()]


def test_list_fits_the_width_of_the_terminal(
    pipeline: Written, dlq: Dlq, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.bury(error="ValueError: " + "x" * 80)
    pipeline.bury(id="4f9a-" * 10 + "end", reason="nacked", error="no customer", headers=REPLAYED)
    monkeypatch.setattr("ebbflow.status.terminal.terminal._UNKNOWN_WIDTH", 80)
    assert dlq("list").stdout == (
        "number  died (2026, UTC)  vertex  id            tries  replays  why\n"
        "     1  05-17 12:01:00    enrich  in-7              6        0  ValueError: xxx…\n"
        "     2  05-17 12:01:00    enrich  4f9a-4…a-end      6        2  nacked: no cust…\n"
        "\n2 dead letters\n"
    )


def test_list_says_how_to_see_more(pipeline: Written, dlq: Dlq) -> None:
    for vertex in ("enrich", "store", "store"):
        pipeline.bury(vertex=vertex)
    more = "; see more with --limit, or their causes with --count\n"
    assert dlq("list", "--limit", "2").stdout.endswith(f"\n2 of 3 dead letters{more}")
    some = dlq("list", "--limit", "1", "--reason", "value").stdout
    assert some.endswith(f"\n1 of more that match, 3 in all{more}")
    numbers = [line.split()[0] for line in dlq("list", "--newest").stdout.splitlines()[1:4]]
    assert numbers == ["3", "2", "1"]
    assert dlq("list", "--count").stdout == (
        "        2  store  ValueError: no customer\n"
        "        1  enrich  ValueError: no customer\n"
        "\n3 dead letters\n"
    )
    assert json.loads(dlq("list", "--count", "--vertex", "enrich", "--json").stdout) == {
        "vertex": "enrich",
        "cause": "ValueError: no customer",
        "count": 1,
    }


def test_the_most_frequent_causes_are_counted_in_few_lines_that_add_up(
    pipeline: Written, dlq: Dlq
) -> None:
    for number in range(8):
        pipeline.bury(reason=f"customer x{number} is not known", error="nacked on delivery 4")
    for number in range(22):
        pipeline.bury(reason=f"Rare{chr(65 + number)}", error=None)
    *lines, _, total = dlq("list", "--count").stdout.splitlines()
    assert lines[0].split("  ")[-1] == "customer … is not known: nacked on delivery 4"
    assert lines[-1].strip() == "3  and 3 more causes; --json has them all"
    assert (len(lines), total) == (21, "30 dead letters")
    assert sum(int(line.split()[0]) for line in lines) == 30
    some = dlq("list", "--count", "--reason", "customer").stdout.splitlines()
    assert some[-1] == "8 dead letters"
    cause = "customer … is not known: nacked on delivery 4"
    assert dlq("purge", "--cause", cause, "--yes").exit_code == 0
    assert dlq("list", "--count").stdout.splitlines()[-1] == "22 dead letters"


def test_an_empty_list_is_one_line(pipeline: Written, dlq: Dlq) -> None:
    assert dlq("list").stdout == "0 dead letters\n"
    pipeline.bury()
    assert dlq("list", "--vertex", "enrihc").stdout == (
        "0 dead letters of vertex 'enrihc'; others have some: enrich (1)\n"
    )
    assert dlq("list", "--text", "moon").stdout == "no dead letter matches; there are 1\n"


@pytest.mark.parametrize(
    ("option", "value", "numbers"),
    [
        ("--vertex", "store", [2]),
        ("--reason", "ORDER", [2]),
        ("--error", "moon", [2]),
        ("--key", "paris", [3]),
        ("--header", "trace=xyz", [3]),
        ("--text", "grün", [3]),
        ("--since", "2026-05-17T12:30", [2]),
        ("--until", "2026-05-17T12:30:00+00:00", [1, 3]),
        ("--since", "1h", []),
    ],
)
def test_list_export_replay_and_purge_take_the_same_filters(
    pipeline: Written, dlq: Dlq, option: str, value: str, numbers: list[int]
) -> None:
    pipeline.bury()
    late = NOON.replace(hour=13)
    pipeline.bury(vertex="store", reason="bad order", error="no moon", last_seen=late)
    pipeline.bury(keys=["paris"], headers={"trace": "xyz"}, value='{"a": "GRÜN"}'.encode())
    for command in ("list", "export"):
        json_option = ["--json"] if command == "list" else []
        lines = dlq(command, option, value, *json_option).stdout.splitlines()
        assert [json.loads(line)["number"] for line in lines] == numbers
    would = json.loads(dlq("replay", option, value, "--dry-run", "--json").stdout)
    stayed = sum(len(group["numbers"]) for group in would["stayed"])
    assert would["sent"] + stayed == len(numbers)
    assert dlq("purge", option, value, "--yes").exit_code == 0
    assert remaining(pipeline) == [number for number in (1, 2, 3) if number not in numbers]


def test_an_invalid_time_or_rate_is_explained(dlq: Dlq) -> None:
    result = dlq("list", "--since", "yesterday")
    assert (result.exit_code, "'yesterday' is not a time; write" in result.stderr) == (2, True)
    result = dlq("replay", "--all", "--rate", "fast")
    assert (result.exit_code, "'fast' is not a rate; write" in result.stderr) == (2, True)


def test_list_as_json_prints_one_object_per_line(pipeline: Written, dlq: Dlq) -> None:
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
        "why": "ValueError: no customer",
        "replays": 0,
    }
    assert (second["number"], second["event_time"]) == (2, None)


def test_show_prints_every_field_of_a_dead_letter(pipeline: Written, dlq: Dlq) -> None:
    pipeline.bury()
    assert dlq("show", "1").stdout == (
        "number:      1\n"
        "vertex:      enrich\n"
        "id:          in-7\n"
        "reason:      ValueError\n"
        "error:       ValueError: no customer\n"
        "deliveries:  6\n"
        "replays:     0\n"
        "first seen:  2026-05-17 12:00:00\n"
        "died:        2026-05-17 12:01:00\n"
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


def test_show_prints_bytes_that_are_not_text_in_hex(pipeline: Written, dlq: Dlq) -> None:
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


def test_control_sequences_in_a_dead_letter_never_reach_the_terminal(
    pipeline: Written, dlq: Dlq
) -> None:
    evil = "\x1b[2J[bold]"
    pipeline.bury(id=evil, error=evil, value=evil.encode(), headers={evil: evil}, keys=[evil])
    for result in (dlq("list"), dlq("show", "1")):
        assert "\x1b" not in result.stdout
        assert r"\x1b[2J[bold]" in result.stdout


def test_replay_sends_back_the_named_dead_letters(pipeline: Written, dlq: Dlq) -> None:
    for n in range(3):
        pipeline.bury(id=f"in-{n}")
    assert dlq("replay", "1", "in-2").stdout == "2 dead letters sent back\n"
    assert remaining(pipeline) == [2]
    assert dlq("replay", "--all", "--dry-run").stdout == "1 dead letter would be sent back\n"
    assert dlq("replay", "--vertex", "enrich").stdout == "1 dead letter sent back\n"
    assert len(pipeline.due()) == 2, "dead letters sent back together share a frame"


@pytest.mark.parametrize("command", ["replay", "purge"])
@pytest.mark.parametrize("args", [(), ("1", "--all"), ("1", "--vertex", "enrich")])
def test_dead_letters_must_be_named_in_exactly_one_way(
    dlq: Dlq, command: str, args: tuple[str]
) -> None:
    result = dlq(command, *args)
    assert result.exit_code == 2
    assert "name dead letters by number or id, or say --all or a filter" in result.stderr


def test_a_refused_replay_exits_with_3(pipeline: Written, dlq: Dlq) -> None:
    pipeline.bury(size=9_000_000)
    result = dlq("replay", "1")
    assert result.exit_code == 3
    assert result.stdout == "0 dead letters sent back\n"
    assert result.stderr.startswith("1 dead letter stayed:\n  1: the value was cut")
    assert remaining(pipeline) == [1]


MAPS = """
from dataclasses import replace
from ebbflow import Message
from ebbflow.deadletters import Letter

def fix(letter: Letter):
    number = int(letter.id.removeprefix("in-"))
    if number == 1:
        raise KeyError("customer")
    if number == 2:
        return None
    if number == 3:
        return Message.to_drop()
    return replace(letter, value=letter.value.upper(), headers={"fixed": "yes"})
"""


def test_a_function_decides_what_is_sent_back(
    pipeline: Written, dlq: Dlq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mending_of_letters.py").write_text(MAPS)
    monkeypatch.chdir(tmp_path)
    for n in range(5):
        pipeline.bury(id=f"in-{n}")
    args = ("replay", "--all", "--map", "mending_of_letters:fix")
    would = dlq(*args, "--dry-run")
    assert would.stdout.startswith(
        "in-0:\n  - {\"order\": 7}  keys ['berlin', '7']\n  + {\"ORDER\": 7}  keys"
    )
    assert would.stdout.endswith(
        "\n2 dead letters would be sent back\n"
        "1 dead letter would be deleted, as the function says\n"
    )
    assert remaining(pipeline) == [1, 2, 3, 4, 5]
    assert pipeline.due() == []
    result = dlq(*args)
    assert result.exit_code == 3
    assert result.stdout == (
        "2 dead letters sent back\n1 dead letter deleted, as the function says\n"
    )
    assert result.stderr == (
        "2 dead letters stayed:\n"
        "  2: the transform raised KeyError: 'customer' (mending_of_letters.py:9)\n"
        "  3: the transform returned nothing; return the message to send back, or "
        "Message.to_drop() to delete the dead letter\n"
    )
    assert remaining(pipeline) == [2, 3]
    (sent,) = pipeline.due()
    rows = Rows(frames.decode(sent.payload))
    assert rows.column("id") == ["in-0", "in-4"]
    assert rows.column("value") == [b'{"ORDER": 7}'] * 2
    assert [headers["fixed"] for headers in rows.column("headers")] == ["yes"] * 2


def test_a_dead_letter_is_edited_and_sent_back(
    pipeline: Written, dlq: Dlq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = pipeline.bury()
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i -e 's/berlin/paris/' -e 's/: 7}/: 8}/' \"$1\"\n")
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", "true")
    assert dlq("replay", str(number), "--edit").stdout == (
        "Nothing was changed, so nothing was sent.\n"
    )
    monkeypatch.setenv("VISUAL", str(editor))
    assert dlq("replay", str(number), "--edit").stdout == "1 dead letter sent back\n"
    (sent,) = pipeline.due()
    rows = Rows(frames.decode(sent.payload))
    assert rows.column("value") == [b'{"order": 8}']
    assert rows.column("keys") == [["paris", "7"]]
    assert rows.column("headers")[0]["trace"] == "abc"


def test_an_edit_that_cannot_be_parsed_is_kept_and_nothing_is_sent(
    pipeline: Written, dlq: Dlq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.bury()
    pipeline.bury(value=b"\xff")
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/^keys: .*/keys: paris/' \"$1\"\n")
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = dlq("replay", "1", "--edit")
    assert (result.exit_code, remaining(pipeline)) == (3, [1, 2])
    assert "Line 4, keys, is not JSON" in result.stderr
    (kept,) = tmp_path.glob("ebbflow-*.letter")
    assert str(kept) in result.stderr
    assert "keys: paris" in kept.read_text()
    assert "is not text" in dlq("replay", "2", "--edit").stderr
    assert dlq("replay", "--all", "--edit").exit_code == 2


def test_a_dead_letter_shows_how_its_message_died_before(pipeline: Written, dlq: Dlq) -> None:
    first = pipeline.bury()
    dlq("replay", str(first))
    (sent,) = pipeline.due()
    (headers,) = Rows(frames.decode(sent.payload)).column("headers")
    again = pipeline.bury(headers=headers, deliveries=2)
    shown = dlq("show", str(again)).stdout
    assert "replays:     1\n" in shown
    assert (
        "history:\n  2026-05-17 12:01:00  died as dead letter 1 on delivery 6: ValueError; "
        in shown
    )
    assert "header trace: abc\n" in shown
    assert "Ebbflow-" not in shown
    facts = json.loads(dlq("show", str(again), "--json").stdout)
    (death,) = facts["history"]
    assert (facts["replays"], death["number"], death["deliveries"]) == (1, 1, 6)
    assert facts["headers"] == {"trace": "abc"}


def test_an_export_has_everything_and_can_go_to_a_file(
    pipeline: Written, dlq: Dlq, tmp_path: Path
) -> None:
    pipeline.bury(value=b"\xff")
    result = dlq("export", "--output", str(tmp_path / "letters.jsonl"))
    assert (result.stdout, result.stderr) == ("", "1 dead letter exported\n")
    facts = json.loads((tmp_path / "letters.jsonl").read_text())
    assert facts["value"] == {"base64": "/w=="}
    assert facts["traceback"].startswith("Traceback")
    assert facts["headers"] == {"trace": "abc"}


def test_purge_asks_for_confirmation(pipeline: Written, dlq: Dlq) -> None:
    pipeline.bury()
    question = f"Delete 1 dead letter of {pipeline.name} for good? [y/N]: "
    refused = dlq("purge", "--all", input="n\n")
    assert refused.stdout == f"{question}n\nNothing was deleted.\n"
    assert remaining(pipeline) == [1]
    agreed = dlq("purge", "1", input="y\n")
    assert agreed.stdout == f"{question}y\n1 dead letter deleted\n"
    assert remaining(pipeline) == []


def test_purge_without_input_to_confirm_needs_yes(pipeline: Written, dlq: Dlq) -> None:
    pipeline.bury()
    assert dlq("purge", "--all", input="").exit_code == 2
    assert remaining(pipeline) == [1]
    assert dlq("purge", "--vertex", "enrich", "--yes").stdout == "1 dead letter deleted\n"
    assert remaining(pipeline) == []


def test_an_unknown_dead_letter_or_pipeline_exits_with_3(pipeline: Written, state: Path) -> None:
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


def test_dead_letters_are_readable_while_the_pipeline_does_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with start_embedded(folder), open_link_to_pipeline(folder, None) as link:
        Written(link, "orders").bury()
    result = CliRunner().invoke(app, ["dlq", "list", "orders", "--state", str(folder)])
    assert result.stdout.endswith("\n1 dead letter\n")
