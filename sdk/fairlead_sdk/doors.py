"""Local sockets that lead into a line's tunnels."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from fairlead_sdk.local_connection import Listen, LocalConnection, OnRefusal, tell_refusal
from fairlead_sdk.local_traffic import Traffic
from fairlead_sdk.tunnel_line import TunnelLine
from fairlead_tunnel.pumped_driver import PumpedDriver
from fairlead_tunnel.tunnel_client import TunnelClient

_STALL_SECONDS: Final = 0.1
"""For the machine to have descriptors again."""
_MOST_ACCEPTS: Final = 64


Make: TypeAlias = "Callable[[Door, TunnelClient | None], LocalConnection]"
"""Makes what asyncio tells of a connection, which the pump of a tunnel had before, or nobody."""


class Door:
    """A listening socket.

    The pump that runs a tunnel accepts its connections, if there is one and for as long as the
    tunnel takes any; else, and meanwhile, the event loop does.
    """

    def __init__(
        self,
        *,
        plug: socket.socket,
        listen: Listen,
        make: Make,
        line: TunnelLine,
        traffic: Traffic,
        on_refusal: OnRefusal,
    ) -> None:
        plug.setblocking(False)
        self._plug = plug
        self._name = plug.getsockname()
        self._listen = listen
        self._make = make
        self._line = line
        self._traffic = traffic
        self._on_refusal = on_refusal
        self._loop = asyncio.get_running_loop()
        self._pumped: PumpedDoor | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._adopting: set[asyncio.Task[object]] = set()

    @property
    def local(self) -> int | Path:
        """The port, or the path."""
        return Path(self._name) if isinstance(self._name, str) else int(self._name[1])

    def open(self) -> None:
        """Accept connections from now on."""
        self._go_on()
        self._line.follow(self)

    def close(self) -> None:
        """Accept none any more; those that are there go on."""
        self._line.forsake(self)
        self._stop()
        if self._pumped is not None:
            self._pumped.stop()
        self._plug.close()

    def adopt(self, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        """Have the event loop tell a protocol of a connection that was made to it."""
        made = self._loop.connect_accepted_socket(lambda: protocol, connection)
        task = self._loop.create_task(made)
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    def made(self, client: TunnelClient) -> LocalConnection:
        """Make who goes on with a connection that the pump of a tunnel has given back."""
        return self._make(self, client)

    def has_accepted(self, connection: socket.socket) -> bool:
        """Say whether a connection was made to this socket."""
        name = connection.getsockname()
        is_named = self._plug.family != socket.AF_UNIX
        return bool(name == self._name or (is_named and name[1] == self._name[1]))

    # What the line tells

    def tunnel_ready(self, client: TunnelClient) -> None:
        """Let the tunnel's pump accept, if it has one."""
        driver = client.driver
        if self._pumped is not None and self._pumped.client is not client:
            self.tunnel_left()
        if self._pumped is None and isinstance(driver, PumpedDriver):
            self._stop()
            self._traffic.include(driver)
            number = self._listen(driver, self._plug.dup())
            self._pumped = PumpedDoor(
                door=self,
                client=client,
                stop=lambda: driver.stop_listening(number),
                on_refusal=self._on_refusal,
            )
            client.add_listener(self._pumped)

    def tunnel_left(self) -> None:
        """Accept here until there is another tunnel."""
        if self._pumped is not None:
            self._pumped.stop()
            self._pumped = None
            self._go_on()

    # Accepting here

    def _go_on(self) -> None:
        self._stalled = None
        self._loop.add_reader(self._plug, self._accept)

    def _stop(self) -> None:
        self._loop.remove_reader(self._plug)
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _accept(self) -> None:
        for _ in range(_MOST_ACCEPTS):
            try:
                connection, _ = self._plug.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # the machine has no descriptors left
                self._stop()
                self._stalled = self._loop.call_later(_STALL_SECONDS, self._go_on)
                return
            connection.setblocking(False)
            self.adopt(connection, self._make(self, None))


class PumpedDoor:
    """A door whose connections the pump of one tunnel has accepted."""

    def __init__(
        self,
        *,
        door: Door,
        client: TunnelClient,
        stop: Callable[[], None],
        on_refusal: OnRefusal,
    ) -> None:
        self._door = door
        self.client = client
        self.stop = stop
        self._on_refusal = on_refusal

    def has_accepted(self, connection: socket.socket) -> bool:
        """Say whether a connection was made to its socket."""
        return self._door.has_accepted(connection)

    def ended(self, reason: str, message: str) -> None:
        """Tell why, once it is known whether the tunnel is over, too."""
        loop = asyncio.get_running_loop()
        loop.call_soon(tell_refusal, self.client, self._on_refusal, reason, message)

    def given_back(
        self, connection: socket.socket, early: bytes, reason: str, message: str
    ) -> None:
        """Begin anew with it, in another tunnel, or answer it."""
        self._door.made(self.client).given_back(connection, early, reason, message)
