"""The committed code is what the committed definitions give."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "generate_proto.py"), str(tmp_path)],
        env=environment,
        check=True,
        capture_output=True,
    )
    made, committed = (contents(folder / "fairlead") for folder in (tmp_path, ROOT / "proto/gen"))
    assert made.keys() == committed.keys()
    assert [name for name in made if made[name] != committed[name]] == []
    assert len(made) > 30


def contents(folder: Path) -> dict[str, bytes]:
    """Read every file of a folder, by its path in it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*.py*")
        if "__pycache__" not in path.parts
    }
