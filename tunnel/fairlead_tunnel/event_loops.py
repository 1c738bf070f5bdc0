"""What event loops differ in."""

from __future__ import annotations

import asyncio


def require_open(writer: asyncio.StreamWriter) -> None:
    """Raise ConnectionResetError where a connection has ended, before something is written.

    asyncio drops what is written then; uvloop raises RuntimeError.
    """
    if writer.is_closing():
        raise ConnectionResetError("the connection has ended")
