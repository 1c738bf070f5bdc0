"""Check the protocol definitions; run by `make proto-check`.

Lints them, compares the generated code with what the definitions give today, and looks for changes
that would break clients of the main branch, where there is one.
"""

from __future__ import annotations

import filecmp
import subprocess
import tempfile
from pathlib import Path

from scripts.generate_proto import ROOT, SOURCES, generate


def differing(left: Path, right: Path) -> list[str]:
    """List the files, relative to both folders, that only one of them has or that differ."""
    names = {
        path.relative_to(folder).as_posix()
        for folder in (left, right)
        for path in folder.rglob("*.py*")
        if "__pycache__" not in path.parts
    }
    _, different, lacking = filecmp.cmpfiles(left, right, sorted(names), shallow=False)
    return sorted([*different, *lacking])


def stale_code() -> list[str]:
    """Return the committed files that differ from what the definitions give now."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        return differing(Path(folder) / "fairlead", SOURCES / "gen" / "fairlead")


def main_branch() -> str | None:
    """Return the name under which git knows a main branch with protocol definitions, or None."""
    for ref in ("origin/main", "main"):
        found = subprocess.run(
            ["git", "-C", str(ROOT), "cat-file", "-e", f"{ref}:proto/buf.yaml"],
            capture_output=True,
            check=False,
        )
        if found.returncode == 0:
            return ref
    return None


def main() -> int:
    """Run all three checks and return the exit status."""
    status = subprocess.run(["buf", "lint", str(SOURCES)], check=False).returncode
    stale = stale_code()
    if stale:
        print(
            "generated code is not what the definitions give; run `make proto`:", *stale, sep="\n  "
        )
        status = status or 1
    against = main_branch()
    if against is None:
        print("no main branch to compare with: breaking changes are not looked for")
        return status
    breaking = subprocess.run(
        ["buf", "breaking", str(SOURCES), "--against", f"{ROOT}/.git#ref={against},subdir=proto"],
        check=False,
    )
    return status or breaking.returncode


if __name__ == "__main__":
    raise SystemExit(main())
