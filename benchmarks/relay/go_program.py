"""Programs of this benchmark that are built from Go where they are used."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


def can_be_built() -> bool:
    """Say whether they can be built here: it takes go."""
    return shutil.which("go") is not None


@asynccontextmanager
async def built(source: Path, package: str = ".") -> AsyncIterator[str]:
    """Build a package of the module at `source`; yields the program's path in the block."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as directory:
        program = str(Path(directory) / "program")
        building = await asyncio.create_subprocess_exec(
            "go", "-C", str(source), "build", "-o", program, package
        )
        assert await building.wait() == 0
        yield program
