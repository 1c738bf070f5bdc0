"""What verbs with local ports share: others are told of the ports, and why they ended is said."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from fairlead_sdk.cli.forwards import Forward, ForwardUnlisted, forwards_of
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.cli.traffic import show_traffic

if TYPE_CHECKING:
    from fairlead_sdk.local_traffic import Traffic


def tunnel_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the event loop that carries tunnels best here; None: asyncio's own does.

    The process keeps the memory that their buffers leave, too.
    """
    try:
        from fairlead_tunnel.event_loops import loop_factory
        from fairlead_tunnel.freed_memory import keep_freed_memory
    except ImportError:  # it carries none: whoever needs one says what to install
        return None
    keep_freed_memory()
    return loop_factory()


class Listing:
    """The local ports of this process, for others to see; make it with `listed`."""

    def __init__(self, *, terminal: Terminal) -> None:
        self._terminal = terminal
        self._made: list[Forward] = []
        self._entries = ExitStack()

    def enter(self, made: Sequence[Forward]) -> None:
        """Let the others know of them."""
        self._made = list(made)
        try:
            for each in made:
                self._entries.enter_context(forwards_of(os.environ).entered(each))
        except ForwardUnlisted as error:
            self._terminal.warn(error.message)

    def renew(self, session_id: str) -> None:
        """Let the others know that they go through another session."""
        self.close()
        self.enter([replace(each, session_id=session_id) for each in self._made])

    def close(self) -> None:
        """Take them back."""
        self._entries.close()


@contextmanager
def listed(terminal: Terminal) -> Iterator[Listing]:
    """Have a listing that ends with the block."""
    listing = Listing(terminal=terminal)
    try:
        yield listing
    finally:
        listing.close()


async def wait_ended(
    losing: Awaitable[None], terminal: Terminal, *, traffic: Traffic | None = None
) -> None:
    """Wait until it is lost, which is no error where somebody wanted it; meanwhile `traffic` is
    shown.
    """
    from fairlead_sdk.session_errors import SessionEnded

    gc.freeze()  # what start-up made stays, and is not looked through again and again
    showing = asyncio.ensure_future(_shown(traffic, terminal))
    try:
        await losing
    except SessionEnded as error:
        if error.reason == "admin_closed" or not error.closed.user_initiated:
            raise
        terminal.say(f"the session was closed: {error.reason}.")
    finally:
        showing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await showing


async def _shown(traffic: Traffic | None, terminal: Terminal) -> None:
    if traffic is not None:
        await show_traffic(traffic, terminal, sleep=asyncio.sleep, clock=time.monotonic)
