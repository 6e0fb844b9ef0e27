"""Servers of grpcio for the services of the protocol, without generated servicers."""

from typing import Any

import grpc

from ebbflow.numaflow.services import Method, methods_of


def add_servicer(server: grpc.Server, servicer: Any, proto: str) -> None:
    """Serves the methods of ``servicer`` as the service in a ``.proto`` file."""
    methods = methods_of(proto)
    handlers = {name: _handler(servicer, method) for name, method in methods.items()}
    service = methods["IsReady"].service
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def _handler(servicer: Any, method: Method) -> grpc.RpcMethodHandler:
    stream, call = grpc.stream_stream_rpc_method_handler, grpc.unary_unary_rpc_method_handler
    make = stream if method.streamed else call
    serve, response = getattr(servicer, method.name), method.response
    return make(serve, method.request.FromString, response.SerializeToString)
