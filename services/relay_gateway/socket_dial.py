"""Connects sockets on the event loop, without a task for each."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from errno import EINPROGRESS, ETIMEDOUT

from fairlead_tunnel.silence import notice_silence


def connecting(
    address: str, port: int, *, seconds: float, fault: Callable[[OSError], Exception]
) -> asyncio.Future[socket.socket]:
    """Connect to an IP address; the future raises what `fault` makes of what stands in the way.

    Cancelling it closes the socket. OSError: there are no more sockets.
    """
    loop = asyncio.get_running_loop()
    made: asyncio.Future[socket.socket] = loop.create_future()
    plug = _plug_for(address)
    number = plug.fileno()  # selectors make a text of a socket that they do not know yet

    def settle(error: int) -> None:
        if made.done():
            return
        if error:
            made.set_exception(fault(OSError(error, os.strerror(error))))
        else:
            made.set_result(plug)
        leave()

    def leave() -> None:
        loop.remove_writer(number)
        timer.cancel()
        if made.cancelled() or made.exception() is not None:
            plug.close()

    def look() -> None:
        settle(plug.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def gave_up(_: object) -> None:
        if made.cancelled():
            leave()

    timer = loop.call_later(seconds, settle, ETIMEDOUT)
    made.add_done_callback(gave_up)
    error = plug.connect_ex((address, port))
    if error == EINPROGRESS:
        loop.add_writer(number, look)
    else:
        settle(error)
    return made


async def connected(address: str, port: int) -> socket.socket:
    """Connect to an IP address, however long it takes; raises OSError."""
    plug = _plug_for(address)
    try:
        await asyncio.get_running_loop().sock_connect(plug, (address, port))
        return plug
    except BaseException:
        plug.close()
        raise


def _plug_for(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    plug = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    plug.setblocking(False)
    notice_silence(plug)
    return plug
