"""What verbs with local ports share: others are told of the ports, and why they ended is said."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fairlead_sdk.cli.forwards import Entry, Flow, Forward, ForwardUnlisted, forwards_of
from fairlead_sdk.cli.running import (
    CLOSED_BY_ADMIN,
    CLOSED_BY_POLICY,
    MESH_UNAVAILABLE,
    NOT_PERMITTED,
    exit_status_of,
)
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.cli.traffic import show_traffic

if TYPE_CHECKING:
    from fairlead_sdk.local_traffic import Traffic


_LOOK_SECONDS: Final = 0.1
_FLOW_SECONDS: Final = 1.0
_BURST: Final = 8
_PAUSE_SECONDS: Final = 5.0
_REPEATED: Final = 4.0
"""What a sentence costs of the burst that is the same as the last one."""
_OWN_STATUSES: Final = frozenset(
    {MESH_UNAVAILABLE, NOT_PERMITTED, CLOSED_BY_ADMIN, CLOSED_BY_POLICY}
)


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


class Notices:
    """Says sentences, but not hundreds: after some in a row the next ones are counted, and the
    newest of them is said once there was a pause.
    """

    def __init__(self, say: Callable[[str], None], *, clock: Callable[[], float]) -> None:
        self._say = say
        self._clock = clock
        self._left = float(_BURST)
        self._at = clock()
        self._unsaid = 0
        self._newest = ""
        self._said = ""

    def say(self, sentence: str) -> None:
        """Say something, now or later."""
        now = self._clock()
        self._left = min(self._left + (now - self._at) / _PAUSE_SECONDS, _BURST)
        self._at = now
        cost = _REPEATED if sentence == self._said else 1.0
        if self._left >= cost and not self._unsaid:
            self._left -= cost
            self._said = sentence
            self._say(sentence)
            return
        if not self._unsaid:
            asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._catch_up)
        self._unsaid += 1
        self._newest = sentence

    def _catch_up(self) -> None:
        others = self._unsaid - 1
        more = f" ({others} more like this were not shown)" if others else ""
        self._unsaid, self._at, self._said = 0, self._clock(), self._newest
        self._say(self._newest + more)


class Listing:
    """The local ports of this process, for others to see and to end; make it with `listed`."""

    def __init__(self, *, terminal: Terminal) -> None:
        self._terminal = terminal
        self._entries: list[tuple[Forward, Callable[[], None], Entry | None]] = []

    def enter(self, made: Sequence[tuple[Forward, Callable[[], None]]]) -> None:
        """Let the others know of forwards, each with what ends it."""
        for forward, end in made:
            entry = None
            try:
                entry = forwards_of(os.environ).enter(forward)
            except ForwardUnlisted as error:
                self._terminal.warn(error.message)
            self._entries.append((forward, end, entry))

    def renew(self, session_id: str) -> None:
        """Let the others know that they go through another session."""
        self._end_unwanted()
        entries, self._entries = self._entries, []
        self.enter([(replace(each, session_id=session_id), end) for each, end, _ in entries])
        for _, _, entry in entries:
            if entry is not None:
                entry.close()

    async def watch(self, flow: Callable[[float], Flow]) -> None:
        """Keep what others see up to date, and end what they want ended, until nothing is left;
        `flow` is given the seconds since it was asked before.
        """
        loop = asyncio.get_running_loop()
        noted = loop.time()
        while self._entries:
            await asyncio.sleep(_LOOK_SECONDS)
            self._end_unwanted()
            seconds = loop.time() - noted
            if seconds >= _FLOW_SECONDS:
                noted, now = loop.time(), flow(seconds)
                for _, _, entry in self._entries:
                    if entry is not None:
                        entry.note(now)

    def close(self) -> None:
        """Take them back."""
        entries, self._entries = self._entries, []
        for _, _, entry in entries:
            if entry is not None:
                entry.close()

    def _end_unwanted(self) -> None:
        kept = []
        for forward, end, entry in self._entries:
            if entry is None or entry.is_wanted:
                kept.append((forward, end, entry))
                continue
            end()
            entry.close()
            self._terminal.say(f"{forward.address} is not forwarded any more: it was stopped.")
        self._entries = kept


@contextmanager
def listed(terminal: Terminal) -> Iterator[Listing]:
    """Have a listing that ends with the block."""
    listing = Listing(terminal=terminal)
    try:
        yield listing
    finally:
        listing.close()


async def wait_ended(
    losing: Awaitable[None],
    terminal: Terminal,
    listing: Listing,
    *,
    traffic: Traffic | None = None,
    carrier: Callable[[], str] = lambda: "",
) -> int:
    """Wait until it is lost, or others have ended all its ports; returns the exit status.

    Meanwhile `traffic` is shown, here and to others. An end that somebody wanted is no error.
    """
    from fairlead_sdk.errors import FairleadError
    from fairlead_sdk.session_errors import SessionEnded

    gc.freeze()  # what start-up made stays, and is not looked through again and again
    lost = asyncio.ensure_future(losing)
    watching = asyncio.ensure_future(listing.watch(Meter(traffic, carrier).flow))
    showing = asyncio.ensure_future(_shown(traffic, terminal))
    try:
        await asyncio.wait((lost, watching), return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        else:
            lost.result()
    except SessionEnded as error:
        if error.reason == "admin_closed" or not error.closed.user_initiated:
            raise
        terminal.say(error.message)
    except FairleadError as error:
        status = exit_status_of(error)
        if status in _OWN_STATUSES:
            raise
        terminal.error(error)
        return MESH_UNAVAILABLE
    finally:
        for task in (lost, watching, showing):
            task.cancel()
        await asyncio.gather(lost, watching, showing, return_exceptions=True)
    return 0


class Meter:
    """Makes flows of what traffic has counted."""

    def __init__(self, traffic: Traffic | None, carrier: Callable[[], str]) -> None:
        self._traffic = traffic
        self._carrier = carrier
        self._sent = 0
        self._received = 0

    def flow(self, seconds: float) -> Flow:
        """Return what goes through, with the rates of the last seconds."""
        traffic = self._traffic
        if traffic is None:
            return Flow(carrier=self._carrier())
        sent, received = traffic.sent, traffic.received
        flow = Flow(
            carrier=self._carrier(),
            connections=traffic.connections,
            sent=sent,
            received=received,
            send_rate=round((sent - self._sent) / seconds),
            receive_rate=round((received - self._received) / seconds),
        )
        self._sent, self._received = sent, received
        return flow


async def _shown(traffic: Traffic | None, terminal: Terminal) -> None:
    if traffic is not None:
        await show_traffic(traffic, terminal, sleep=asyncio.sleep, clock=time.monotonic)
