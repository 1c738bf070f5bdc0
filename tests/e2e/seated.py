"""A person at a terminal, in front of `fairlead`: what is typed, what is shown, what is left of it;
and a network that can be cut.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

from tests.eventually import SECONDS

_PATIENCE_SECONDS = SECONDS
_UPGRADE = re.compile(rb"(?im)^(?:upgrade: *websocket|connection: *upgrade)\r\n")


class Seated:
    """A terminal with the command in front of it."""

    def __init__(self, *arguments: str, environment: Mapping[str, str], cwd: str) -> None:
        self._near, self._far = os.openpty()
        self.resize(33, 101)
        self.settings = termios.tcgetattr(self._far)
        self.shown = b""
        self.transcript = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fairlead_sdk", *arguments],
            stdin=self._far,
            stdout=self._far,
            stderr=self._far,
            env={**environment, "TERM": "xterm"},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY),
        )

    @property
    def is_raw(self) -> bool:
        """Whether every key goes through."""
        return not termios.tcgetattr(self._far)[3] & termios.ISIG

    @property
    def is_restored(self) -> bool:
        """Whether the terminal is as it was."""
        return termios.tcgetattr(self._far) == self.settings

    def resize(self, rows: int, columns: int) -> None:
        """Drag the window."""
        fcntl.ioctl(self._near, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def heard(self) -> bytes:
        """Return all that the other side wrote, without what `fairlead` itself says in between."""
        return re.sub(rb"\r\nfairlead: [^\r]*\r\n", b"", self.transcript)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._near, text.encode())

    def until(self, pattern: str) -> re.Match[bytes]:
        """Wait until it shows this, and return what was found; what comes before is forgotten."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        expression = re.compile(pattern.encode())
        while (found := expression.search(self.shown)) is None:
            assert time.monotonic() < deadline, f"{pattern!r} did not come: {self.shown[-2000:]!r}"
            self._read()
        self.shown = self.shown[found.end() :]
        return found

    def until_heard(self, content: bytes) -> None:
        """Wait until the other side has written this, now or at any time before."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while content not in self.heard():
            assert time.monotonic() < deadline, f"{content!r} did not come: {self.transcript!r}"
            self._read()

    def ended(self) -> int:
        """Wait for the command's end and return its status."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it goes on: {self.shown[-2000:]!r}"
            self._read()
        return self.process.returncode

    def close(self) -> None:
        """Go away."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._near)
        os.close(self._far)

    def _read(self) -> None:
        if select.select([self._near], [], [], 0.05)[0]:
            seen = os.read(self._near, 65536)
            self.shown += seen
            self.transcript += seen


@contextmanager
def seated(*arguments: str, environment: Mapping[str, str], cwd: str) -> Iterator[Seated]:
    """Run the command on a terminal of its own."""
    person = Seated(*arguments, environment=environment, cwd=cwd)
    try:
        yield person
    finally:
        person.close()


class Network:
    """A port that leads to another one until it is cut; with `strips_upgrades` it is a proxy that
    knows no WebSockets: what asks for an upgrade arrives without asking.
    """

    def __init__(self, *, port: int, strips_upgrades: bool = False) -> None:
        self._target = port
        self._strips_upgrades = strips_upgrades
        self.stripped = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._is_cut = False
        self._lock = threading.Lock()
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def cut(self) -> None:
        """Break every connection, and all that come, until it is mended."""
        with self._lock:
            self._is_cut = True
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let connections through again."""
        self._is_cut = False

    def close(self) -> None:
        """End it."""
        self.cut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for opened in (self._listener, *self._open):
            opened.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                with self._lock:
                    if self._is_cut:
                        near.close()
                        continue
                    far = socket.create_connection(("127.0.0.1", self._target))
                    self._open += [near, far]
                self._start(partial(_carry, near, far, self._passed))
                self._start(partial(_carry, far, near, _unchanged))

    def _passed(self, piece: bytes) -> bytes:
        """Return what becomes of a piece on its way; a handshake is one of its own."""
        if not self._strips_upgrades or not _UPGRADE.search(piece):
            return piece
        self.stripped += 1
        return _UPGRADE.sub(b"", piece)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()


def _unchanged(piece: bytes) -> bytes:
    return piece


def _carry(source: socket.socket, sink: socket.socket, passed: Callable[[bytes], bytes]) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(passed(piece))
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
