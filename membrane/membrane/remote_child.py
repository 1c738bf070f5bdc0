"""Children that are born elsewhere, in a sandbox for one, and are reached by one byte stream."""

from __future__ import annotations

import contextlib
import importlib.util
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from membrane import multiplex
from membrane.errors import ChildLost, MembraneError, ProtocolError, UnsupportedUse
from membrane.service import Service
from membrane.splice import Splice, Stream

FREE_SECONDS = 5.0
"""Time for a child to end a call that is cancelled, both ways of the network included."""

_BIRTH_SECONDS = 60.0


class Carriage(Protocol):
    """The byte stream of one child: `stream` is this side's end of a pair of stream sockets, and
    reads end-of-file once the child is gone.
    """

    stream: socket.socket

    @property
    def fault(self) -> str:
        """Why it ended; known before the end-of-file."""
        ...

    @property
    def refusal(self) -> MembraneError | None:
        """What keeps every other child from being born as well; known before the end-of-file."""
        ...

    def kill(self) -> None:
        """End the child now; never waits. From any thread."""
        ...


class Place(Protocol):
    """Where children can be born; compared by identity. `name` says where it is, and `isolation`
    how it is kept apart.
    """

    name: str
    isolation: str

    def carry(self, python: str) -> Carriage:
        """Have a child born by this Python, a program of the place; never waits."""
        ...


@dataclass(frozen=True, slots=True)
class RemoteSpec:
    """What a remote child is started with; `path` is in the place, and searched first."""

    place: Place
    python: str
    path: tuple[str, ...]
    preload: tuple[str, ...]

    @property
    def isolation(self) -> str:
        """How the place is kept apart."""
        return self.place.isolation


class RemoteChild:
    """A child at the other end of a carriage; a thread of the service carries for it."""

    shares_memory = False
    free_seconds = FREE_SECONDS

    def __init__(self, *, spec: RemoteSpec, service: Service) -> None:
        """Ask for it; raises UnsupportedUse in a sub-interpreter, which has no threads."""
        if service.is_threadless:
            raise UnsupportedUse(
                "a sub-interpreter cannot carry for children elsewhere; isolate in the main one"
            )
        self.fault = ""
        self.ended: Callable[[], None] | None = None
        self.is_over = False
        self.has_numpy = importlib.util.find_spec("numpy") is not None
        self._pid = 0
        self._refusal: MembraneError | None = None
        self._born = threading.Event()
        self._carriage = spec.place.carry(spec.python)
        stream = self._carriage.stream
        self.control, far_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lane, far_lane = socket.socketpair()
        start = multiplex.Start(
            wire=multiplex.WIRE,
            path=list(spec.path),
            preload=list(spec.preload),
            isolation=spec.isolation,
            numpy=self.has_numpy,
        )
        self._splice = Splice(
            stream=Stream(
                inward=stream.fileno(),
                outward=stream.fileno(),
                read=lambda size: stream.recv(size, socket.MSG_DONTWAIT),
                write=lambda out: stream.send(out, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL),
            ),
            control=far_control,
            lane=far_lane,
            greet=self._on_greeting,
            makes_lanes=False,
            first=multiplex.greeting(start),
        )
        service.run(self._carry)

    @property
    def pid(self) -> int:
        """Its process id in the place; waits for its birth. Raises ChildLost."""
        self.wait_born()
        if not self._pid:
            raise ChildLost(f"the child was never born: {self.fault or 'its place is silent'}")
        return self._pid

    @property
    def refusal(self) -> MembraneError | None:
        """What to raise instead of trying again."""
        return self._refusal or self._carriage.refusal

    def wait_born(self) -> None:
        """Wait until it is born, or will never be."""
        self._born.wait(_BIRTH_SECONDS)

    def is_gone(self) -> bool:
        """Look whether the stream has ended: the other end of its control is closed then."""
        try:
            poll = select.poll()
            poll.register(self.control, 0)
            return self.is_over or bool(poll.poll(0))
        except (OSError, ValueError):
            return True

    def kill(self) -> None:
        """End it; never waits."""
        self._carriage.kill()

    def close(self) -> None:
        """Let go of the sockets, in a fork that has no thread that carries."""
        self.control.close()
        self.lane.close()
        self._splice.close()
        self._carriage.stream.close()

    def _carry(self) -> None:
        try:
            self._splice.run()
        except ProtocolError as error:
            self.fault = f"it broke the protocol of its stream: {error}"
            self._carriage.kill()
        finally:
            # Before those see the end who wait for it.
            self.fault = self.fault or self._carriage.fault
            self._splice.close()
            with contextlib.suppress(OSError):
                self._carriage.stream.shutdown(socket.SHUT_WR)
            self._carriage.stream.close()
            self.is_over = True
            self._born.set()
            if self.ended is not None:
                self.ended()

    def _on_greeting(self, content: bytes) -> None:
        told = multiplex.read_greeting(content)
        if told.unsupported:
            self._refusal = UnsupportedUse(f"no child can live there: {told.unsupported}")
        elif told.unprepared:
            self._refusal = UnsupportedUse(
                f"no child can be prepared: {told.unprepared}; see to preload and paths"
            )
        elif told.wire != multiplex.WIRE:
            self._refusal = UnsupportedUse(
                f"the host speaks version {told.wire} of the membrane and this is "
                f"{multiplex.WIRE}; install the same version of Fairlead on both sides"
            )
        if self._refusal is not None:
            raise ProtocolError("it is refused")
        self._pid = told.pid
        self.has_numpy = self.has_numpy and told.numpy
        self._born.set()
