"""A store of answers in a process of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbflow.domain.errors import StreamBroken, Unavailable
from ebbflow.numaflow.process import FunctionPlan
from ebbflow.numaflow.remote import RemoteStore

pytestmark = pytest.mark.slow

SERVER = Path(__file__).parent / "servers" / "odd_store.py"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteStore]:
    monkeypatch.setenv("NUMAFLOW_VERTEX_NAME", "answer")
    variables = (("STATE", str(tmp_path / "state")),)
    command = (sys.executable, str(SERVER))
    store = RemoteStore(FunctionPlan("udstore", image="odd", command=command, env=variables))
    store.open()
    yield store
    store.close()


def test_answers_are_stored_under_the_id_of_their_request(store: RemoteStore) -> None:
    store.put("r1", [b"a", b""])
    store.put("r1", [b"b"])
    store.put("origins", [b"c"])
    assert store.get("r1") == [b"a", b"", b"b"]
    assert store.get("origins") == [b"answer"]
    assert store.get("r2") == []
    with pytest.raises(Unavailable, match="the store odd: it did not store an answer"):
        store.put("refuse", [b"a"])


def test_a_store_that_breaks_is_called_once_more(store: RemoteStore) -> None:
    store.put("exit-once", [b"a"])
    assert store.get("exit-once") == [b"a"]
    with pytest.raises(StreamBroken, match="it ended with code 3"):
        store.put("exit", [b"a"])
    store.put("r1", [b"a"])
    assert store.get("r1") == [b"a"]
