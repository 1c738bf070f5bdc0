"""Says which walls around git stand on this machine:
`python -m workspace_provisioner.wall.report DIRECTORY`. Exit code 0 when all do, 1 otherwise.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from workspace_provisioner.wall.git_wall import GitWall, WallReport


async def report(directory: Path) -> WallReport:
    """Build the wall, try it on the directory's file system, and say what holds."""
    async with GitWall(program=shutil.which("git") or "/usr/bin/git", directory=directory) as wall:
        return wall.report()


def main() -> int:
    """Print the report as JSON."""
    found = asyncio.run(report(Path(sys.argv[1])))
    sys.stdout.write(json.dumps(asdict(found)) + "\n")
    return 1 if found.missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
