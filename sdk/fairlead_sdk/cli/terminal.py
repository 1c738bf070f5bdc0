"""What the command line says and where: data on standard output, sentences on standard error."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import shutil
import sys
import threading
from collections.abc import Mapping
from typing import IO, Protocol

from fairlead_sdk.errors import FairleadError

STDOUT = 1
STDERR = 2
_AHEAD = 64


def colours_on(stream: IO[str]) -> bool:
    """Say whether colours and cursor movements make sense there; NO_COLOR is https://no-color.org."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Output(Protocol):
    """Where a command's two streams go."""

    @property
    def columns(self) -> int:
        """How wide the terminal is."""
        ...

    @property
    def is_live(self) -> bool:
        """Whether colours and cursor movements make sense on standard error."""
        ...

    def at_once(self, descriptor: int, content: bytes) -> None:
        """Write now: a sentence of ours."""
        ...

    async def write(self, descriptor: int, content: bytes) -> None:
        """Write soon, in order; raises `BrokenPipeError` once the reader is gone."""
        ...

    async def drain(self) -> None:
        """Wait until everything is written; raises `BrokenPipeError` once the reader is gone."""
        ...

    async def mark(self, launch_id: str, cursor: str) -> None:
        """Note that all of a launch's events up to `cursor` have been taken."""
        ...

    async def began(self, key: str, body: bytes) -> None:
        """Note with which key and body a launch is asked for."""
        ...


class RawOutput:
    """Writes bytes to descriptors in order, unbuffered, in a thread, so that a reader who is slow
    never blocks the event loop and with it Ctrl-C.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(_AHEAD)
        self._failure: OSError | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_live(self) -> bool:
        """Whether standard error is a terminal that takes colours."""
        return colours_on(sys.stderr)

    @property
    def columns(self) -> int:
        """How wide the terminal is now."""
        return shutil.get_terminal_size((100, 24)).columns

    def at_once(self, descriptor: int, content: bytes) -> None:
        """Write now."""
        write_all(descriptor, content)

    async def mark(self, launch_id: str, cursor: str) -> None:
        """Nobody has to know."""

    async def began(self, key: str, body: bytes) -> None:
        """Nobody has to know."""

    async def write(self, descriptor: int, content: bytes) -> None:
        """Write soon; raises `BrokenPipeError` once the reader is gone."""
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="output", daemon=True)
            self._thread.start()
        await self._room.acquire()
        if self._failure is not None:
            raise self._failure
        self._queue.put((descriptor, content))

    async def drain(self) -> None:
        """Wait until everything is written; raises `BrokenPipeError` once the reader is gone."""
        if self._thread is None:
            return
        for _ in range(_AHEAD):
            await self._room.acquire()
        for _ in range(_AHEAD):
            self._room.release()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while True:
            descriptor, content = self._queue.get()
            try:
                if self._failure is None:
                    write_all(descriptor, content)
            except OSError as error:
                self._failure = error
            if self._loop is None or self._loop.is_closed():
                return
            self._loop.call_soon_threadsafe(self._room.release)


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte, whatever the descriptor takes at once."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class Terminal:
    """The two streams of one command. With `is_json` data are JSON and nothing else is said."""

    def __init__(self, *, is_json: bool, output: Output | None = None) -> None:
        self.is_json = is_json
        self.raw: Output = RawOutput() if output is None else output
        self.is_live = not is_json and self.raw.is_live
        self._status = ""

    def say(self, sentence: str) -> None:
        """Say something to a person."""
        if not self.is_json:
            self.line(f"fairlead: {sentence}")

    def warn(self, sentence: str) -> None:
        """Warn a person, also when data are JSON."""
        self.line(f"fairlead: warning: {sentence}")

    def line(self, text: str) -> None:
        """Write a line to standard error, above the status line."""
        self._clear()
        self.raw.at_once(STDERR, f"{text}\n".encode("utf-8", "replace"))
        self._show()

    def status(self, text: str) -> None:
        """Show what is going on in one line that is written over; only on a terminal."""
        if self.is_live and text != self._status:
            self._clear()
            self._status = text
            self._show()

    async def output(self, descriptor: int, content: bytes) -> None:
        """Pass a command's output through."""
        if self._status:
            self.status("")
        await self.raw.write(descriptor, content)

    async def text(self, text: str) -> None:
        """Write data for a person to standard output."""
        await self.output(STDOUT, f"{text}\n".encode("utf-8", "replace"))

    async def document(self, document: Mapping[str, object]) -> None:
        """Write one line of JSON to standard output."""
        await self.output(STDOUT, _json_line(document))

    def error(self, error: FairleadError) -> None:
        """Tell of an error: a sentence and its remedy, or a problem document (RFC 9457)."""
        self.status("")
        if self.is_json:
            self.raw.at_once(STDOUT, _json_line(problem_of(error)))
            return
        remedy = f"\n  remedy: {error.remedy}" if error.remedy else ""
        self.line(f"fairlead: {error.message}{remedy}")

    def _clear(self) -> None:
        if self._status:
            self.raw.at_once(STDERR, b"\r\x1b[K")

    def _show(self) -> None:
        if self._status:
            shown = self._status[: self.raw.columns - 1]
            self.raw.at_once(STDERR, f"\r{shown}".encode("utf-8", "replace"))


def problem_of(error: FairleadError) -> dict[str, object]:
    """Give an error's problem document (RFC 9457)."""
    return {
        "type": f"urn:fairlead:problem:{error.reason}",
        "title": type(error).__name__,
        "detail": error.message,
        "reason": error.reason,
        "remedy": error.remedy,
        "trace_id": error.trace_id,
        **error.fields,
    }


def _json_line(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"
