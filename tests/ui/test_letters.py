"""Dead letters over the web UI's API: found, opened, edited, sent back, exported and purged."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from ebbflow.engine import frames
from ebbflow.ui.jobs import Jobs
from ebbflow.ui.letters import LetterReaders
from tests.ui.shown import Shown
from tests.ui.ui_client import Answer, UiClient, serve_ui
from tests.waiting import let_time_pass, until


@pytest.fixture
def shown(link, names) -> Shown:
    shown = Shown(link, names)
    shown.add_vertex("enrich")
    return shown


@pytest.fixture(scope="module")
def ui(link):
    with serve_ui(link) as ui:
        yield ui


def path(shown: Shown, *parts: object) -> str:
    return "/".join(["/api/pipelines", shown.name, "dead-letters", *map(str, parts)])


def sent_back(shown: Shown) -> dict[str, bytes]:
    """The values of the messages that were sent back to the vertex, by id."""
    batches = [frames.decode(message.payload) for message in shown.due()]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return {row["id"]: row["value"] for row in rows}


def test_dead_letters_are_searched_page_by_page_without_their_values(ui: UiClient, shown: Shown):
    for number in range(5):
        shown.bury(id=f"in-{number}", error=f"ValueError: {number}")
    newest = ui.get(path(shown) + "?limit=2").json
    assert [letter["id"] for letter in newest["letters"]] == ["in-4", "in-3"]
    older = ui.get(path(shown) + f"?limit=9&after={newest['next']}").json
    assert [letter["id"] for letter in older["letters"]] == ["in-2", "in-1", "in-0"]
    first = ui.get(path(shown) + "?limit=2&order=oldest").json
    assert ([letter["id"] for letter in first["letters"]], first["total"]) == (["in-0", "in-1"], 5)
    assert ui.get(path(shown) + "?order=upwards").status == 400
    assert {"number", "last_seen", "vertex", "id", "deliveries", "reason", "error", "why"} <= set(
        first["letters"][0]
    )
    assert "value" not in first["letters"][0]
    rest = ui.get(path(shown) + f"?limit=9&order=oldest&after={first['next']}").json
    assert ([letter["id"] for letter in rest["letters"]], rest["next"]) == (
        ["in-2", "in-3", "in-4"],
        None,
    )
    found = ui.get(path(shown) + "?error=valueerror%3A%203&vertex=enrich").json["letters"]
    assert [letter["id"] for letter in found] == ["in-3"]
    counts = ui.get(path(shown, "counts")).json
    assert counts["vertices"] == {"enrich": 5}
    text = "ValueError: …"
    cause = {"vertex": "enrich", "text": text, "reason": text, "count": 5}
    assert (counts["causes"], counts["total"]) == ([cause], 5)
    assert counts["more"] == {"causes": 0, "count": 0}
    alike = ui.get(path(shown) + "?cause=ValueError%3A%20%E2%80%A6").json["letters"]
    assert len(alike) == 5


def test_a_dead_letter_is_opened_with_its_value_as_text_or_in_base64(ui: UiClient, shown: Shown):
    text, binary = shown.bury(), shown.bury(value=b"\xff\x00")
    letter = ui.get(path(shown, text)).json
    assert letter["value"] == {"text": '{"order": 7}'}
    assert letter["headers"] == {"trace": "abc"}
    assert "ValueError: no customer" in letter["traceback"]
    assert ui.get(path(shown, binary)).json["value"] == {"base64": "/wA="}
    missing = ui.get(path(shown, 999))
    assert (missing.status, missing.json["error"]) == (404, "there is no dead letter 999")


def test_a_dead_letter_is_edited_and_sent_back(ui: UiClient, shown: Shown):
    number = shown.bury()
    edit = {"numbers": [number], "value": {"text": "ä"}, "keys": ["k"], "headers": {"a": "b"}}
    assert ui.post(path(shown, "replay"), edit).json == {"sent": 1, "purged": 0, "stayed": {}}
    assert sent_back(shown) == {"in-7": "ä".encode()}
    assert ui.get(path(shown, number)).status == 404
    binary = shown.bury(id="in-8")
    value = {"base64": base64.b64encode(b"\xff").decode()}
    ui.post(path(shown, "replay"), {"numbers": [binary], "value": value})
    assert sent_back(shown)["in-8"] == b"\xff"


def test_a_dry_run_changes_nothing_and_bounds_the_action_that_follows(ui: UiClient, shown: Shown):
    for number in range(3):
        shown.bury(id=f"in-{number}")
    for action, name in (("replay", "sent"), ("purge", "purged")):
        tried = ui.post(path(shown, action), {"filter": {}, "dry_run": True}).json
        assert (tried[name], tried["up_to"]) == (3, 3)
        by_text = ui.post(path(shown, action), {"filter": {"id": "in-1"}, "dry_run": True}).json
        assert (by_text[name], by_text["up_to"]) == (1, 3)
    late = shown.bury(id="in-9")
    done = ui.post(path(shown, "purge"), {"filter": {"up_to": tried["up_to"]}}).json
    assert done == {"purged": 3}
    assert ui.get(path(shown, late)).status == 200
    assert sent_back(shown) == {}


def test_many_dead_letters_are_sent_back_by_a_job_that_can_be_polled_and_stopped(
    ui: UiClient, shown: Shown, monkeypatch
):
    monkeypatch.setattr(Jobs, "reply_within", 0.05)
    for number in range(30):
        shown.bury(id=f"in-{number}")
    begun = ui.post(path(shown, "replay"), {"filter": {}, "rate": 20})
    assert (begun.status, begun.json["done"]) == (202, False)
    job = path(shown, "jobs", begun.json["job"])
    assert ui.get(job).json["done"] is False
    assert ui.post(f"{job}/stop").status == 200
    stopped = ask_until_done(ui, job).json
    assert stopped["error"] == "it was stopped"
    assert stopped["next_step"] == "Do it again to continue."
    again = ui.post(path(shown, "replay"), {"filter": {}})
    if again.status == 202:
        ask_until_done(ui, path(shown, "jobs", again.json["job"]))
    assert len(sent_back(shown)) == 30
    assert ui.get(path(shown)).json["letters"] == []
    assert ui.get(path(shown, "jobs", 12345)).status == 404


def ask_until_done(ui: UiClient, job: str) -> Answer:
    until(lambda: ui.get(job).json["done"])
    return ui.get(job)


def test_dead_letters_are_exported_as_lines(ui: UiClient, shown: Shown):
    for number in range(450):
        shown.bury(id=f"in-{number}")
    answer = ui.get(path(shown, "export"))
    lines = [json.loads(line) for line in answer.raw.splitlines()]
    assert [line["id"] for line in lines] == [f"in-{number}" for number in range(450)]
    assert answer.headers["content-disposition"] == (
        f'attachment; filename="{shown.name}-dead-letters.jsonl"'
    )
    assert ui.get(path(shown, "export") + "?id=nobody").raw == b""


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "name the dead letters by numbers, or by a filter"),
        ({"numbers": [1], "filter": {}}, "name the dead letters by numbers, or by a filter"),
        ({"numbers": []}, "numbers must be a list of 1 to 100,000 whole numbers"),
        ({"numbers": [True]}, "numbers must be a list of 1 to 100,000 whole numbers"),
        ({"filter": {"vortex": "a"}}, "a filter has no 'vortex'"),
        ({"filter": {"since": "soon"}}, "since must be a time such as 2026-01-31T12:00:00Z"),
        (
            {"filter": {}, "value": "x"},
            "only one dead letter can be edited at a time; name its number",
        ),
        ({"numbers": [1], "value": {"base64": "?"}}, "the value is not base64"),
        (
            {"numbers": [1], "rate": 0},
            "rate must be a number of dead letters a second, more than 0",
        ),
        ({"numbers": [1], "dry_run": "no"}, "dry_run must be true or false"),
    ],
)
def test_an_invalid_body_changes_nothing(ui: UiClient, shown: Shown, body, error):
    number = shown.bury()
    answer = ui.post(path(shown, "replay"), body)
    assert (answer.status, answer.json["error"]) == (400, error)
    assert ui.get(path(shown, number)).status == 200


def test_a_missing_dead_letter_is_reported_and_not_sent(ui: UiClient, shown: Shown):
    answer = ui.post(path(shown, "replay"), {"numbers": [77]}).json
    assert (answer["sent"], [*answer["stayed"].values()]) == (0, [[77]])
    assert ui.post(path(shown, "purge"), {"numbers": [77]}).status == 409


def test_concurrent_threads_share_a_reader(link, shown: Shown, monkeypatch):
    made = []

    class Letters:
        def __init__(self, *_: object) -> None:
            made.append(self)
            let_time_pass(0.05)  # during which the other threads look for a reader, too

    monkeypatch.setattr("ebbflow.ui.letters.DeadLetters", Letters)
    readers = LetterReaders()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: readers.use(link, "p", "list", id), range(8)))
    assert len(made) == 1
