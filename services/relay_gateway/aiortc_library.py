"""Imports aiortc without holding anything up: it takes about a second, most of it codecs."""

from __future__ import annotations

import asyncio
import importlib
import logging

from chassis.errors import FailedPrecondition
from fairlead_tunnel.loopback_candidates import offer_loopback_when_alone

log = logging.getLogger(__name__)


class AiortcMissing(FailedPrecondition):
    """The extra that the gateway needs is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "The relay-gateway needs aiortc, which is not installed.",
            reason="aiortc_missing",
            remedy="Run: pip install 'fairlead[relay]'",
        )


def load_aiortc() -> None:
    """Import aiortc, with loopback candidates where there are no others; blocks.

    Raises AiortcMissing.
    """
    try:
        importlib.import_module("aiortc")
    except ImportError as error:
        raise AiortcMissing from error
    # At level info aioice logs the addresses of both peers for each check; at debug both log
    # packets and descriptions.
    for name in ("aioice", "aiortc"):
        logging.getLogger(name).setLevel(logging.WARNING)
    offer_loopback_when_alone(importlib.import_module("aioice.ice"))


class AiortcLibrary:
    """The import, done once, in a thread."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._loaded = False

    async def load(self) -> None:
        """Wait until aiortc can be used; afterwards `import aiortc` costs nothing."""
        async with self._lock:
            if not self._loaded:
                await asyncio.to_thread(load_aiortc)
                self._loaded = True
                log.debug("aiortc loaded")
