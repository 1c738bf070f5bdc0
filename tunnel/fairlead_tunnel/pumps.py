"""Which pump there is here for tunnels."""

from __future__ import annotations

import importlib
from enum import StrEnum
from typing import Protocol, cast

from fairlead_tunnel.installed import is_installed
from fairlead_tunnel.pumped_driver import NativePump


class PumpChoice(StrEnum):
    """What tunnels run on: the native pump where it is installed (`auto`), or the event loop."""

    AUTO = "auto"
    PYTHON = "python"


class ClosablePump(NativePump, Protocol):
    """A pump, and its end."""

    def close(self) -> None:
        """Drop all connections and end the thread; again changes nothing."""
        ...


class _Native(Protocol):
    """What is used of `fairlead_native`."""

    def Pump(self) -> ClosablePump: ...


def make_pump(choice: PumpChoice) -> ClosablePump | None:
    """Make the native pump in the running loop; None: tunnels run on the event loop itself."""
    if choice is PumpChoice.PYTHON or not is_installed("fairlead_native"):
        return None
    return cast(_Native, importlib.import_module("fairlead_native")).Pump()
