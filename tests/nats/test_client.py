"""The private parts of nats-py that Ebbflow uses: all checked, and used in one module only."""

from __future__ import annotations

import asyncio
import re
from importlib.metadata import requires
from pathlib import Path
from urllib.parse import urlparse

import pytest
from nats.aio.client import Client, Srv

import ebbflow
from ebbflow.domain.errors import SetupError
from ebbflow.nats.client import NATS_PY, PRIVATE_PARTS, SecuredClient
from ebbflow.nats.login import Addresses

ROOT = Path(ebbflow.__file__).parent


@pytest.mark.parametrize("part", ["_process_err", "_sid"])
def test_a_version_of_nats_py_that_lacks_a_needed_part_is_rejected_by_name(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(self: Client, name: str) -> object:
        if name == part:
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    monkeypatch.setattr(Client, "__getattribute__", lose, raising=False)
    with pytest.raises(SetupError, match=rf"nats-py \d.*has no {part}\..*pip install"):
        SecuredClient(Addresses(("nats://localhost:4222",)))


@pytest.mark.parametrize("other", ["2.15.0", "2.17.0", "2.160.1", "3.16.0"])
def test_a_version_of_nats_py_with_unknown_private_parts_is_rejected_by_name(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbflow.nats.client._installed_nats_py", lambda: other)
    with pytest.raises(SetupError) as refused:
        SecuredClient(Addresses(("nats://localhost:4222",)))
    assert str(refused.value) == (
        f"Ebbflow does not work with nats-py {other}: Ebbflow uses private parts of its client, "
        "which are known for 2.16 only. Install a version that works with: "
        "pip install 'nats-py==2.16.*'"
    )


def test_the_package_requires_the_known_version_of_nats_py() -> None:
    wanted = [text for text in requires("ebbflow") or () if text.startswith("nats-py")]
    major, minor = map(int, NATS_PY.split("."))
    assert [{*text.partition("]")[2].split(",")} for text in wanted] == [
        {f">={NATS_PY}", f"<{major}.{minor + 1}"}
    ]


def test_every_private_part_of_the_client_in_use_is_checked() -> None:
    text = (ROOT / "nats/client.py").read_text("utf-8")
    body = text.partition("class SecuredClient")[2].partition("class WideTransport")[0]
    used = set(re.findall(r"(?:self|super\(\))\.(_[a-z]\w*)", body))
    of_nats_py = {part for part in used if hasattr(Client(), part)}
    overridden = {part for part in re.findall(r"def (_[a-z]\w*)", body) if hasattr(Client, part)}
    assert of_nats_py | overridden == {*PRIVATE_PARTS}


def test_a_lost_server_is_tried_after_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SecuredClient(Addresses(("nats://localhost:4222",)))
    others = [Srv(urlparse(f"nats://other{number}:4222")) for number in range(4)]
    lost = client._current_server = Srv(urlparse("nats://lost:4222"))
    client._server_pool = [lost, *others]

    async def begin(self: Client) -> None:
        """Stands in for nats-py's own reconnecting: one server after another, in this order."""

    monkeypatch.setattr(Client, "_attempt_reconnect", begin)
    asyncio.run(client._attempt_reconnect())
    assert client._server_pool[-1] is lost
    assert {*map(id, client._server_pool)} == {*map(id, [lost, *others])}


def test_no_other_module_uses_private_parts_of_the_client() -> None:
    reaching = re.compile(r"\b(?:client|nc)\._[a-z]")
    using = [path.name for path in ROOT.rglob("*.py") if reaching.search(path.read_text("utf-8"))]
    assert using == []


@pytest.mark.parametrize(
    ("urls", "here"),
    [
        ("nats://127.0.0.1:4222", True),
        ("nats://127.1.2.3:4222", True),
        ("nats://localhost:4222", True),
        ("nats://LOCALHOST:4222", True),
        ("nats://[::1]:4222", True),
        ("nats://nats.example:4222", False),
        ("nats://10.127.0.0.1.example:4222", False),
        ("nats://localhost:4222,nats://nats.example:4222", False),
    ],
)
def test_a_server_on_this_machine_is_recognised_in_every_spelling(urls: str, here: bool) -> None:
    assert Addresses.of(urls).is_loopback is here
