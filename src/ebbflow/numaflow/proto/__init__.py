"""The messages of the protocol: ``.proto`` files, and the classes of what is in them.

``make protos`` compiles the files to ``protocol.binpb``, from which the classes are made here: one
namespace for each file, named like the module that protoc would generate. Packages, names and
numbers of fields are those that Numaflow's SDKs speak. The messages live in a separate pool: a
process that has loaded an SDK as well, whose messages bear the same names, keeps both apart. Only
``numaflow`` imports it. Start with ``map.proto``.
"""

from importlib.resources import files
from types import SimpleNamespace
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

COMPILED = "protocol.binpb"
"""The file with what protoc makes of all ``.proto`` files and of those that they import."""

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
