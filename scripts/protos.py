"""Generates the modules of the protocol of functions from their ``.proto`` files.

Stubs and servicers of gRPC are not generated: the client has its own framing, and the server uses
generic handlers. ``make protos`` runs this after a change; a test compares what it makes with what
is in the tree.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent / "src"
PROTOS = Path("ebbflow/numaflow/proto")
SHARED = "_descriptor_pool.Default()"
OWN = "_ebbflow_numaflow_proto.POOL"


def generate(target: Path) -> None:
    """Writes the modules below a folder that stands for the source folder."""
    sources = [str(path.relative_to(ROOT)) for path in sorted((ROOT / PROTOS).glob("*.proto"))]
    includes = [f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
    outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi")]
    if protoc.main(["protoc", *includes, *outputs, *sources]) != 0:
        sys.exit("protoc refused a file; it says why above.")
    for module in (target / PROTOS).glob("*_pb2.py"):
        module.write_text(keep_apart(module.read_text("utf-8")), "utf-8")


def keep_apart(code: str) -> str:
    """Puts the messages of a module in our own pool instead of the one that SDKs use."""
    if code.count(SHARED) != 1:
        sys.exit("protoc writes modules in a new way: look where they name their pool.")
    first = "from google.protobuf import descriptor as _descriptor\n"
    imported = "from ebbflow.numaflow import proto as _ebbflow_numaflow_proto\n"
    return code.replace(SHARED, OWN).replace(first, imported + first)


if __name__ == "__main__":
    generate(ROOT)
