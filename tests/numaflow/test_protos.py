"""The modules of the protocol are those of their files, and their messages are Numaflow's."""

import runpy
import sys
from pathlib import Path

import pytest

from ebbflow.numaflow import proto
from ebbflow.numaflow.proto import (
    COMPILED,
    map_pb2,
    metadata_pb2,
    nack_options_pb2,
    sink_pb2,
    source_pb2,
    sourcetransform_pb2,
)

SCRIPT = Path(__file__).parents[2] / "scripts" / "protos.py"
PROTOS = Path(proto.__file__).parent


def test_the_modules_are_what_their_proto_files_generate(tmp_path: Path) -> None:
    runpy.run_path(str(SCRIPT))["compile_protos"](tmp_path)
    assert (tmp_path / COMPILED).read_bytes() == (PROTOS / COMPILED).read_bytes(), "make protos"
    for path in PROTOS.glob("*.proto"):
        assert hasattr(proto, f"{path.stem}_pb2"), "a .proto file has no messages"


def sdk(name: str) -> object:
    """A module of pynumaflow with the messages that it sends and understands."""
    pytest.importorskip("pynumaflow")
    return pytest.importorskip(f"pynumaflow.proto.{name}")


NEW = {
    "map.v1.MapResponse.Result.nack_options",
    "sink.v1.SinkResponse.Result.nack_options",
    "sink.v1.Status.NACK",
    "source.v1.NackRequest.Request.nack_options",
    "source.v1.NackRequest.request",
    "sourcetransformer.v1.SourceTransformResponse.Result.nack_options",
}
"""Fields that pynumaflow does not have yet, or has once where others have them often."""


def fields(descriptor: object) -> dict[str, tuple[int, object, bool]]:
    """Number, type and multiplicity of each field by its full name, and the values of enums."""
    named = {}
    for message in descriptor.message_types_by_name.values():
        named.update(fields_of(message))
    for enum in descriptor.enum_types_by_name.values():
        named.update(values_of(enum))
    return named


def fields_of(message: object) -> dict[str, tuple[int, object, bool]]:
    named = {
        field.full_name: (field.number, field.type, field.is_repeated) for field in message.fields
    }
    for nested in message.nested_types:
        named.update(fields_of(nested))
    for enum in message.enum_types:
        named.update(values_of(enum))
    return named


def values_of(enum: object) -> dict[str, tuple[int, object, bool]]:
    return {f"{enum.full_name}.{value.name}": (value.number, None, False) for value in enum.values}


@pytest.mark.parametrize(
    ("module", "theirs"),
    [
        (map_pb2, "mapper.map_pb2"),
        (sink_pb2, "sinker.sink_pb2"),
        (source_pb2, "sourcer.source_pb2"),
        (sourcetransform_pb2, "sourcetransformer.transform_pb2"),
    ],
    ids=["map", "sink", "source", "transform"],
)
def test_field_numbers_and_types_are_those_of_the_sdk(module: object, theirs: str) -> None:
    known = fields(sdk(theirs).DESCRIPTOR)  # type: ignore[attr-defined]
    ours = fields(module.DESCRIPTOR)  # type: ignore[attr-defined]
    assert {name: ours[name] for name in known if name not in NEW} == {
        name: field for name, field in known.items() if name not in NEW
    }
    assert {name for name in ours if name not in known} <= NEW


def test_metadata_and_nack_options_have_the_field_numbers_of_the_protocol() -> None:
    assert {name: field[0] for name, field in fields(metadata_pb2.DESCRIPTOR).items()} == {
        "metadata.Metadata.previous_vertex": 1,
        "metadata.Metadata.sys_metadata": 2,
        "metadata.Metadata.SysMetadataEntry.key": 1,
        "metadata.Metadata.SysMetadataEntry.value": 2,
        "metadata.Metadata.user_metadata": 3,
        "metadata.Metadata.UserMetadataEntry.key": 1,
        "metadata.Metadata.UserMetadataEntry.value": 2,
        "metadata.KeyValueGroup.key_value": 1,
        "metadata.KeyValueGroup.KeyValueEntry.key": 1,
        "metadata.KeyValueGroup.KeyValueEntry.value": 2,
    }
    options = fields(nack_options_pb2.DESCRIPTOR)
    assert [name.rsplit(".", 1)[1] for name in options][:4] == [
        "reason",
        "max_deliveries",
        "delay",
        "nack_map",
    ]
    assert [field[0] for field in options.values()][:4] == [1, 2, 3, 4]


def test_messages_of_an_sdk_in_the_same_process_are_other_classes() -> None:
    theirs = sdk("sinker.sink_pb2")
    assert "pynumaflow.proto.sinker.sink_pb2" in sys.modules
    assert theirs.SinkRequest is not sink_pb2.SinkRequest  # type: ignore[attr-defined]


def test_several_nacked_offsets_are_one_entry_for_an_sdk_that_knows_only_one() -> None:
    entries = [
        source_pb2.NackRequest.Request(offsets=[source_pb2.Offset(offset=name, partition_id=3)])
        for name in (b"a", b"b")
    ]
    request = source_pb2.NackRequest(request=entries)
    read = sdk("sourcer.source_pb2").NackRequest.FromString(request.SerializeToString())  # type: ignore[attr-defined]
    assert [(item.offset, item.partition_id) for item in read.request.offsets] == [
        (b"a", 3),
        (b"b", 3),
    ]
