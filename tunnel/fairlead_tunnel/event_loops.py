"""Which event loop a process that carries tunnels runs on, and how its writes fail on each."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Protocol, TypeAlias, cast

from fairlead_tunnel.installed import is_installed

LoopFactory: TypeAlias = Callable[[], asyncio.AbstractEventLoop]


class _Uvloop(Protocol):
    """What is used of `uvloop`."""

    def Loop(self) -> asyncio.AbstractEventLoop: ...


def loop_factory() -> LoopFactory | None:
    """Return what makes uvloop's event loop, where it is installed; None: asyncio's own serves."""
    if not is_installed("uvloop"):
        return None
    return cast(_Uvloop, importlib.import_module("uvloop")).Loop


def require_open(writer: asyncio.StreamWriter) -> None:
    """Raise ConnectionResetError where a connection has ended, before something is written.

    asyncio drops what is written then; uvloop raises RuntimeError.
    """
    if writer.is_closing():
        raise ConnectionResetError("the connection has ended")
