"""The messages of the protocol: ``.proto`` files and their classes.

``make protos`` compiles the files to ``protocol.binpb``, from which the classes are made here: one
namespace for each file, named like the module that protoc would generate. Packages, field names and
field numbers are those of Numaflow's SDKs. The messages have their own pool, so that they do not
clash with an SDK in the same process, whose messages have the same names. Only ``numaflow`` imports
it. Start with ``map.proto``.
"""

from importlib.resources import files
from types import SimpleNamespace
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

COMPILED = "protocol.binpb"
"""The file with all ``.proto`` files and their imports, compiled by protoc."""

_POOL: Any = DescriptorPool()
for _file in FileDescriptorSet.FromString(files(__name__).joinpath(COMPILED).read_bytes()).file:
    _POOL.Add(_file)


def messages_of(name: str) -> Any:
    """Returns the messages and the values of enums in a ``.proto`` file, and its descriptor."""
    file = _POOL.FindFileByName(f"ebbflow/numaflow/proto/{name}.proto")
    messages = {kind: GetMessageClass(of) for kind, of in file.message_types_by_name.items()}
    enums = file.enum_types_by_name.values()
    values = {value.name: value.number for enum in enums for value in enum.values}
    return SimpleNamespace(DESCRIPTOR=file, **messages, **values)


map_pb2 = messages_of("map")
metadata_pb2 = messages_of("metadata")
nack_options_pb2 = messages_of("nack_options")
rpc_status_pb2 = messages_of("rpc_status")
sink_pb2 = messages_of("sink")
source_pb2 = messages_of("source")
sourcetransform_pb2 = messages_of("sourcetransform")
store_pb2 = messages_of("store")
