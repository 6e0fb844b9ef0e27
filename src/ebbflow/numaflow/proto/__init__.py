"""The messages of the protocol, one module for each service.

``make protos`` generates the modules from the ``.proto`` files here. Packages, names and field
numbers are those that Numaflow's SDKs speak. The messages live in a pool of their own: a process
that has loaded an SDK as well, whose messages bear the same names, keeps both apart.
"""

from google.protobuf import any_pb2, descriptor_pool, duration_pb2, empty_pb2, timestamp_pb2

POOL = descriptor_pool.DescriptorPool()
"""Knows the messages of these modules and those of protobuf that they are made of."""

for known in (any_pb2, duration_pb2, empty_pb2, timestamp_pb2):
    POOL.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
