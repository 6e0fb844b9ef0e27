"""Generates the modules of the protocol of functions from their ``.proto`` files.

``make protos`` runs it after a change; a test compares what it makes with what is in the tree.
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
    sources = sorted((ROOT / PROTOS).glob("*.proto"))
    services = [path for path in sources if "\nservice " in path.read_text("utf-8")]
    compile_into(target, sources, "python", "pyi")
    compile_into(target, services, "grpc_python")
    for module in (target / PROTOS).glob("*_pb2.py"):
        module.write_text(keep_apart(module.read_text("utf-8")), "utf-8")


def compile_into(target: Path, sources: list[Path], *kinds: str) -> None:
    """Writes the modules of some kinds for some files."""
    includes = [f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
    outputs = [f"--{kind}_out={target}" for kind in kinds]
    names = [str(path.relative_to(ROOT)) for path in sources]
    if protoc.main(["protoc", *includes, *outputs, *names]) != 0:
        sys.exit("protoc refused a file; it says why above.")


def keep_apart(code: str) -> str:
    """Puts the messages of a module in our own pool instead of the one that SDKs use."""
    if code.count(SHARED) != 1:
        sys.exit("protoc writes modules in a new way: look where they name their pool.")
    first = "from google.protobuf import descriptor as _descriptor\n"
    imported = "from ebbflow.numaflow import proto as _ebbflow_numaflow_proto\n"
    return code.replace(SHARED, OWN).replace(first, imported + first)


if __name__ == "__main__":
    generate(ROOT)
