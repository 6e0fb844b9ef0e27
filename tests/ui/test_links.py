"""A web UI on a state folder: it follows runs to their server, and never blocks a new run."""

import pytest

from ebbflow.domain.errors import SetupError
from ebbflow.nats.embedded import StateFolder
from ebbflow.nats.link import Link
from ebbflow.nats.locate import start_embedded
from ebbflow.ui.links import FolderLink
from tests.waiting import until


def is_connected(ui: FolderLink) -> bool:
    try:
        return ui.get().client.is_connected
    except SetupError:
        return False


def test_a_missing_state_folder_is_rejected_with_the_reason(tmp_path):
    with pytest.raises(SetupError, match="no pipeline has run here"):
        FolderLink(tmp_path / "state")


def test_a_run_takes_over_the_folder_of_a_web_ui_that_then_uses_the_runs_server(tmp_path):
    ui = FolderLink(tmp_path)
    try:
        own_link = ui.get()
        assert ui.get() is own_link
        with start_embedded(tmp_path) as server:
            until(lambda: is_connected(ui))
            link = ui.get()
            assert (link is not own_link, str(link.server)) == (True, str(server))
        # The web UI notices a moment later that its server is gone.
        until(lambda: is_connected(ui) and ui.get() is not link)
        # Other clients use the server that the web UI runs, as they use that of a run.
        other = Link(StateFolder(tmp_path).find_running_server())
        other.close()
    finally:
        ui.close()
    folder = StateFolder(tmp_path)
    folder.acquire()
    folder.release()


def test_an_owner_that_does_not_yield_is_not_waited_for(tmp_path):
    owner = StateFolder(tmp_path)
    owner.acquire()
    with pytest.raises(SetupError, match="belongs to a running instance"):
        StateFolder(tmp_path).acquire()
    assert not owner.is_wanted
    owner.release()
