"""A page on a state folder: it goes along with runs, and keeps nobody from starting one."""

import pytest

from ebbflow.domain.errors import SetupError
from ebbflow.nats.embedded import StateFolder
from ebbflow.nats.link import Link
from ebbflow.nats.locate import start_embedded
from ebbflow.ui.links import FolderLink
from tests.waiting import until


def is_connected(page: FolderLink) -> bool:
    try:
        return page.get().client.is_connected
    except SetupError:
        return False


def test_a_folder_that_does_not_exist_is_told_with_what_to_do(tmp_path):
    with pytest.raises(SetupError, match="no pipeline has run here"):
        FolderLink(tmp_path / "state")


def test_a_run_gets_the_folder_that_a_page_has_and_the_page_goes_along(tmp_path):
    page = FolderLink(tmp_path)
    try:
        own = page.get()
        assert page.get() is own
        with start_embedded(tmp_path) as server:
            until(lambda: is_connected(page))
            link = page.get()
            assert (link is not own, str(link.server)) == (True, str(server))
        # The page notices a moment later that its server is gone.
        until(lambda: is_connected(page) and page.get() is not link)
        # Others use the server that the page runs, as they use that of a run.
        beside = Link(StateFolder(tmp_path).find_running_server())
        beside.close()
    finally:
        page.close()
    folder = StateFolder(tmp_path)
    folder.acquire()
    folder.release()


def test_one_who_does_not_yield_is_not_waited_for(tmp_path):
    owner = StateFolder(tmp_path)
    owner.acquire()
    with pytest.raises(SetupError, match="belongs to a running instance"):
        StateFolder(tmp_path).acquire()
    assert not owner.is_wanted
    owner.release()
