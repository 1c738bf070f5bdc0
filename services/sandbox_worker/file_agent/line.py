"""The agent's end of its line to the worker: blocking, one request, one outcome."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

from sandbox_worker.file_agent.frames import (
    ANSWER,
    CONTENT,
    END,
    HEADER,
    LARGEST,
    PROGRESS,
    frame,
    join,
    split,
)

_QUIET_SECONDS = 2.0


class WorkerGone(Exception):
    """The worker has closed the line: nobody wants the outcome."""


class Refused(Exception):
    """The request cannot be done; `reason` is one of file_errors'."""

    def __init__(self, reason: str, path: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


class Line:
    """Frames to and from the worker; raises WorkerGone wherever it is gone."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._ended = False
        self._said = time.monotonic()

    def request(self) -> list[bytes]:
        """Wait for the request; return its fields."""
        _, payload = self._receive()
        return split(payload)

    def content(self) -> Iterator[bytes]:
        """Give the pieces of content up to their end."""
        while not self._ended:
            kind, payload = self._receive()
            if kind == END:
                self._ended = True
            elif payload:
                yield payload

    def answer(self, *fields: bytes | int) -> None:
        """Send fields."""
        self.send(ANSWER, join(*fields))

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame."""
        try:
            self._link.sendall(frame(kind, payload))
        except OSError:
            raise WorkerGone from None
        self._said = time.monotonic()

    def breathe(self) -> None:
        """Tell the worker now and then that work goes on."""
        if time.monotonic() - self._said > _QUIET_SECONDS:
            self.send(PROGRESS)

    def pieces(self, content: bytes) -> None:
        """Send content in frames."""
        for start in range(0, len(content), LARGEST):
            self.send(CONTENT, content[start : start + LARGEST])

    @property
    def is_left(self) -> bool:
        """Whether the worker has closed the line, as far as one can see without waiting."""
        try:
            return self._link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def fileno(self) -> int:
        """Return the descriptor, for poll(2)."""
        return self._link.fileno()

    def _receive(self) -> tuple[bytes, bytes]:
        kind, length = HEADER.unpack(self._exactly(HEADER.size))
        if length > LARGEST:
            raise WorkerGone
        return kind, self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            try:
                part = self._link.recv(size)
            except OSError:
                raise WorkerGone from None
            if not part:
                raise WorkerGone
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
