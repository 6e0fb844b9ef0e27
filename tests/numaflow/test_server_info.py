"""Server-info files: what is read from them, and which functions are refused."""

import json
from pathlib import Path
from typing import get_args

import pytest

from ebbflow.domain.errors import SetupError
from ebbflow.numaflow.server_info import (
    END_MARKER,
    ContainerType,
    ServerInfo,
    check_server_info,
    info_path,
    own_server_info,
    read_server_info,
    socket_path,
)
from ebbflow.numaflow.services import SERVICES


def write(folder: Path, container: ContainerType, facts: object) -> None:
    info_path(folder, container).write_text(json.dumps(facts) + END_MARKER)


def test_a_file_is_read_only_when_it_is_complete(tmp_path: Path) -> None:
    path = info_path(tmp_path, "udf")
    assert path.name == "mapper-server-info"
    assert read_server_info(tmp_path, "udf") is None
    facts = {"protocol": "uds", "language": "Python", "version": "0.14.0", "metadata": {"A": 1}}
    whole = json.dumps(facts) + END_MARKER
    for end in range(len(whole)):
        path.write_text(whole[:end])
        assert read_server_info(tmp_path, "udf") is None
    path.write_text(whole)
    info = read_server_info(tmp_path, "udf")
    assert info == ServerInfo("uds", "python", "0.14.0", {"A": "1"})


def test_a_file_without_any_value_is_accepted(tmp_path: Path) -> None:
    write(tmp_path, "udsink", {"metadata": None})
    info = read_server_info(tmp_path, "udsink")
    assert info == ServerInfo()
    check_server_info(ServerInfo(), "udsink")


@pytest.mark.parametrize("content", ["[]", "no json", '{"metadata": [1]}'])
def test_a_file_with_other_content_is_rejected(tmp_path: Path, content: str) -> None:
    info_path(tmp_path, "udf").write_text(content + END_MARKER)
    with pytest.raises(SetupError, match="mapper-server-info is not what"):
        read_server_info(tmp_path, "udf")


@pytest.mark.parametrize(
    ("container", "metadata", "name"),
    [
        ("udf", {}, "map.sock"),
        ("udf", {"MAP_MODE": "unary-map"}, "map.sock"),
        ("udf", {"MAP_MODE": "batch-map"}, "batchmap.sock"),
        ("udf", {"MAP_MODE": "stream-map"}, "mapstream.sock"),
        ("udf", {"MAP_MODE": "of tomorrow"}, "map.sock"),
        ("udf", {"MULTIPROC": "1"}, "multiproc0.sock"),
        ("udsink", {}, "sink.sock"),
        ("fb-udsink", {}, "fb-sink.sock"),
        ("ons-udsink", {}, "ons-sink.sock"),
        ("transformer", {}, "sourcetransform.sock"),
        ("udsource", {}, "source.sock"),
        ("udstore", {}, "serving.sock"),
    ],
)
def test_the_socket_of_a_function_follows_from_its_container_and_mode(
    container: ContainerType, metadata: dict[str, str], name: str
) -> None:
    info = ServerInfo(metadata=metadata)
    assert socket_path(Path("/folder"), container, info) == Path("/folder") / name


@pytest.mark.parametrize(
    ("language", "version", "container", "accepted"),
    [
        ("go", "v0.9.0", "udf", True),
        ("go", "v0.8.2", "udf", False),
        ("go", "v0.10.2-0.20250101-abcdef", "ons-udsink", True),
        ("go", "v0.10.1", "ons-udsink", False),
        ("python", "0.9.0rc1", "udsink", True),
        ("python", "0.11.0", "ons-udsink", False),
        ("python", "0.11.1", "ons-udsink", True),
        ("java", "0.8.9", "udsource", False),
        ("java", "0.9", "udsource", True),
        ("rust", "0.1.9", "transformer", False),
        ("rust", "0.2.0", "transformer", True),
        ("rust", "0.3.9", "ons-udsink", False),
        ("rust", "(devel)", "ons-udsink", True),
        ("zig", "0.0.1", "udf", True),
    ],
)
def test_an_sdk_that_is_too_old_is_rejected(
    language: str, version: str, container: ContainerType, accepted: bool
) -> None:
    info = ServerInfo(language=language, version=version)
    if accepted:
        check_server_info(info, container)
        return
    with pytest.raises(SetupError, match=f"too old: {language} {version}. Build it with version"):
        check_server_info(info, container)


@pytest.mark.parametrize(
    ("protocol", "metadata"),
    [
        ("tcp", {"MULTIPROC_ENDPOINTS": "0.0.0.0:1,0.0.0.0:2"}),
        ("tcp", {}),
        ("uds", {"MULTIPROC": "2"}),
    ],
)
def test_several_servers_of_one_function_are_rejected(
    protocol: str, metadata: dict[str, str]
) -> None:
    with pytest.raises(SetupError, match=r"Start one server .* more partitions"):
        check_server_info(ServerInfo(protocol=protocol, metadata=metadata), "udf")


def test_sources_of_old_sdks_accept_no_nacks() -> None:
    assert not ServerInfo(language="go", version="v0.10.9").takes_nacks
    assert ServerInfo(language="go", version="v0.11.0").takes_nacks
    assert not ServerInfo(language="rust", version="0.3.0").takes_nacks
    assert ServerInfo(language="python").takes_nacks


def test_only_sdks_that_are_known_to_do_so_pass_nack_options_to_sources() -> None:
    assert ServerInfo(language="go", version="v0.12.0").takes_nack_options
    assert not ServerInfo(language="go", version="v0.11.0").takes_nack_options
    assert not ServerInfo(language="python", version="0.14.0").takes_nack_options
    assert not ServerInfo(language="java", version="1.0.0").takes_nack_options
    assert not ServerInfo(language="go").takes_nack_options
    assert own_server_info(SERVICES["source"]).takes_nack_options


def test_every_container_has_its_own_file() -> None:
    names = {info_path(Path(), container).name for container in get_args(ContainerType)}
    assert len(names) == len(get_args(ContainerType))
