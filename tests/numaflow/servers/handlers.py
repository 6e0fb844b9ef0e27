"""Servers of grpcio for the services of the protocol, without generated servicers."""

from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass


def add_servicer(server: grpc.Server, servicer: Any, module: Any) -> None:
    """Serves the methods of ``servicer`` as the service that a module of messages describes."""
    (service,) = module.DESCRIPTOR.services_by_name.values()
    methods = {method.name: _handler(servicer, method) for method in service.methods}
    handler = grpc.method_handlers_generic_handler(service.full_name, methods)
    server.add_generic_rpc_handlers((handler,))


def _handler(servicer: Any, method: Any) -> grpc.RpcMethodHandler:
    stream, call = grpc.stream_stream_rpc_method_handler, grpc.unary_unary_rpc_method_handler
    make = stream if method.client_streaming else call
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return make(getattr(servicer, method.name), request.FromString, response.SerializeToString)
