"""Finds out whether sandboxes of this host can mount layered workspaces, and whether a worker that
is root can run plain processes without its rights.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from fairlead_walls.own_place import OWN_PLACE

log = logging.getLogger(__name__)

_SERVICES = Path(__file__).resolve().parents[2]
_PROGRAM = (
    "import sys; sys.path[:0] = sys.argv[1], sys.argv.pop(2); "
    "from sandbox_worker.isolation.{module} import main; main()"
)


async def can_mount_overlay(directory: Path) -> bool:
    """Try it below `directory`, which is on the file system of the host's volume; says in the log
    why not.
    """
    cause = await _tried("overlay", str(directory))
    if cause:
        log.info("overlays cannot be mounted here", extra={"cause": cause})
    return not cause


async def why_root_stays(directory: Path, *, user: int, with_layers: bool) -> str:
    """Say why programs of a worker that is root cannot run as `user` in a workspace below
    `directory`; empty when they can.
    """
    kind = "layers" if with_layers else "plain"
    return await _tried("unprivileged", str(directory), str(user), kind)


async def _tried(module: str, *words: str) -> str:
    """Run a trial, and return why it failed, empty when it did not."""
    program = _PROGRAM.format(module=module)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", program, str(_SERVICES), OWN_PLACE, *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={},
    )  # fmt: skip
    _, complaint = await process.communicate()
    if process.returncode == 0:
        return ""
    return complaint.decode("utf-8", "replace").strip()[-200:] or "its trial was killed"
