"""Compiles the ``.proto`` files of the function protocol to one descriptor file.

No modules are generated: ``ebbflow.numaflow.proto`` creates the message classes when it is
imported. Run ``make protos`` after a change; a test compares the output with the
file in the repository.
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
    """Writes the descriptors of all files and their imports into a folder."""
    sources = [str(path.relative_to(ROOT)) for path in sorted((ROOT / PROTOS).glob("*.proto"))]
    includes = [f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
    outputs = ["--include_imports", f"--descriptor_set_out={target / COMPILED}"]
    if protoc.main(["protoc", *includes, *outputs, *sources]) != 0:
        sys.exit("protoc refused a file; see its message above.")


if __name__ == "__main__":
    compile_protos(ROOT / PROTOS)
