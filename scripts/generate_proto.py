"""Generate `proto/gen` from `proto/fairlead`; run by `make proto`, compared by a test."""

from __future__ import annotations

import shutil
import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "proto"


def generate(target: Path) -> None:
    """Write the package `fairlead` below `target`, replacing it; SystemExit on a compile error."""
    shutil.rmtree(target / "fairlead", ignore_errors=True)
    target.mkdir(parents=True, exist_ok=True)
    includes = [f"-I{SOURCES}", f"-I{files('grpc_tools') / '_proto'}"]
    outputs = [f"--{kind}_out={target}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    sources = sorted(str(path) for path in (SOURCES / "fairlead").rglob("*.proto"))
    status = protoc.main(["protoc", *includes, *outputs, *sources])
    if status != 0:
        raise SystemExit(status)
    for package in (target / "fairlead").rglob("v1"):
        (package / "__init__.py").touch()


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCES / "gen")
