"""Finds out whether sandboxes of this host can mount layered workspaces."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

log = logging.getLogger(__name__)

_SERVICES = Path(__file__).resolve().parents[2]
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from sandbox_worker.isolation.overlay import main; main()"
)


async def can_mount_overlay(directory: Path) -> bool:
    """Try it below `directory`, which is on the file system of the host's volume; says in the log
    why not.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", _PROGRAM, str(_SERVICES), str(directory),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={},
    )  # fmt: skip
    _, complaint = await process.communicate()
    if process.returncode != 0:
        cause = complaint.decode("utf-8", "replace").strip()[-200:]
        log.info("overlays cannot be mounted here", extra={"cause": cause})
    return process.returncode == 0
