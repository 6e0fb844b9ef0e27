"""Compiles the ``.proto`` files of the protocol of functions to one file of descriptors.

No modules are generated: ``ebbflow.numaflow.proto`` makes the classes of the messages when it is
imported. ``make protos`` runs this after a change; a test compares what it makes with what is in
the tree.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent / "src"
PROTOS = Path("ebbflow/numaflow/proto")
COMPILED = "protocol.binpb"


def compile_protos(target: Path) -> None:
    """Writes the descriptors of all files, and of those that they import, into a folder."""
    sources = [str(path.relative_to(ROOT)) for path in sorted((ROOT / PROTOS).glob("*.proto"))]
    includes = [f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
    outputs = ["--include_imports", f"--descriptor_set_out={target / COMPILED}"]
    if protoc.main(["protoc", *includes, *outputs, *sources]) != 0:
        sys.exit("protoc refused a file; it says why above.")


if __name__ == "__main__":
    compile_protos(ROOT / PROTOS)
