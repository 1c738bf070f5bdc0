"""What a Python in a sandbox becomes a holder of objects by: the membrane's own program for it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from membrane.bundle import BOOT, bundle


class MembraneHost:
    """The membrane of this worker, which it carries into sandboxes whose Python has none."""

    boot = BOOT

    def __init__(self, *, executor: Executor) -> None:
        self._executor = executor

    async def bundle(self) -> bytes:
        """Return what `boot` reads first; made once."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, bundle)
