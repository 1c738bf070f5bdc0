"""Python objects that live in a sandbox and are used here through proxies of the membrane."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fairlead_sdk import json_form as form
from fairlead_sdk.client import FrontDoor, problem_of
from fairlead_sdk.errors import FailedPrecondition, FairleadError, Unavailable
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypedDict

    from fairlead_sdk.websocket import WebSocket
    from membrane.errors import MembraneError

    class PrewarmOptions(TypedDict, total=False):
        """The keywords of `prewarm`; see `membrane.remote.prewarm_at`."""

        python: str
        policy: str
        type_rules: Sequence[tuple[type, str]]
        keepalive: float | None
        expose: Sequence[str]
        preload: Sequence[str]
        deadline: float | None
        paths: Sequence[str]
        memory_bytes: int | None

    class IsolateOptions(PrewarmOptions, total=False):
        """The keywords of `isolate`; see `membrane.remote.isolate_at`."""

        share_key: str | None


_READ_BYTES = 256 * 1024
_NO_PYTHON = frozenset({"command_not_found", "command_not_executable"})
_ENDS = {
    "released": "its sandbox was released",
    "timed_out": "the time that programs of its sandbox have was over",
    "host_lost": "its host was lost",
    "out_of_memory": "its sandbox had no more memory for it",
    "limit_pids": "its sandbox had no more processes for it",
    "limit_disk": "its sandbox had used up its disk",
}


class SandboxObjects:
    """A sandbox as a place of the membrane. Each child is a Python there with a WebSocket of its
    own, on a loop of its own: proxies may be used where the caller's loop is blocked by them.
    """

    def __init__(self, *, door: FrontDoor, sandbox_id: str, isolation: str) -> None:
        self.name = sandbox_id
        self.isolation = isolation
        self._door = door
        self._lock = threading.Lock()
        self._loop: LoopThread | None = None
        self._is_closed = False

    def isolate(self, target: str, options: IsolateOptions) -> type[Any]:
        """Give a proxy class of a class that lives in the sandbox; see `AsyncIsolating.isolate`."""
        _require_linux()
        from membrane.remote import isolate_at

        return isolate_at(self, target, **options)

    def prewarm(self, share_key: str, options: PrewarmOptions) -> bool:
        """Start the child of a share key; see `AsyncIsolating.prewarm`."""
        _require_linux()
        from membrane.remote import prewarm_at

        return prewarm_at(self, share_key, **options)

    def close_session(self, share_key: str) -> bool:
        """End the child of a share key; see `AsyncIsolating.close_session`."""
        _require_linux()
        from membrane.remote import close_session_at

        return close_session_at(self, share_key)

    def carry(self, python: str) -> SandboxCarriage:
        """Have a child born by a Python of the sandbox."""
        path = f"/v1/sandboxes/{quote(self.name, safe='')}/objects"
        with self._lock:
            if self._loop is None and not self._is_closed:
                self._loop = LoopThread()
            return SandboxCarriage(loop=self._loop, door=self._door, path=path, python=python)

    def close(self) -> None:
        """End all children; never waits for a running call."""
        with self._lock:
            self._is_closed = True
            loop, self._loop = self._loop, None
        if loop is None:
            return
        from membrane.remote import close_place

        close_place(self)
        loop.close()


class SandboxCarriage:
    """The bytes of one child, between a pair of sockets and a WebSocket."""

    def __init__(self, *, loop: LoopThread | None, door: FrontDoor, path: str, python: str) -> None:
        self.fault = ""
        self.refusal: MembraneError | None = None
        self.stream, self._far = socket.socketpair()
        self._far.setblocking(False)
        self._door = door
        self._path = path
        self._python = python
        self._is_open = False
        if loop is None:
            self._refuse("what it would live in is closed here")
            self._far.close()
        else:
            self._work = loop.begin(self._carry())

    def kill(self) -> None:
        """End the child now."""
        if self.refusal is None:
            self._work.cancel()

    async def _carry(self) -> None:
        try:
            async with self._door.socket(self._path) as link:
                await link.send(json.dumps({"type": "open", "python": self._python}))
                ways = [asyncio.create_task(way(link)) for way in (self._send, self._receive)]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    found = await asyncio.gather(*ways, return_exceptions=True)
                for error in found:
                    if isinstance(error, FairleadError):
                        raise error
        except FairleadError as error:
            self._fail(error)
        finally:
            # Known before the other end reads that this is the end.
            self.fault = self.fault or "the connection to its sandbox was closed"
            self._far.close()

    async def _send(self, link: WebSocket) -> None:
        """Send what the child is told until that ends; a connection that breaks is noticed by who
        reads, and told there with its reason.
        """
        loop = asyncio.get_running_loop()
        try:
            while content := await loop.sock_recv(self._far, _READ_BYTES):
                await link.send(content)
        except Unavailable:
            await asyncio.Event().wait()

    async def _receive(self, link: WebSocket) -> None:
        loop = asyncio.get_running_loop()
        while (message := await link.receive()) is not None:
            if isinstance(message, bytes):
                with contextlib.suppress(OSError):
                    await loop.sock_sendall(self._far, message)
            else:
                self._take(form.parse_object(message))

    def _take(self, document: JsonObject) -> None:
        problem = problem_of(document)
        if problem is not None:
            raise problem
        match form.text(document, "type"):
            case "opened":
                self._is_open = True
            case "ended":
                self.fault = _told(form.child(document, "ended") or {})

    def _fail(self, error: FairleadError) -> None:
        text = f"{error.message} {error.remedy}".strip()
        self.fault = self.fault or text
        if not self._is_open:
            self._refuse(text, error)

    def _refuse(self, text: str, cause: FairleadError | None = None) -> None:
        from membrane.errors import ChildLost, UnsupportedUse

        self.fault = text
        if cause is not None and cause.reason in _NO_PYTHON:
            self.refusal = UnsupportedUse(f"{text} Name a Python of the sandbox with python=.")
        else:
            self.refusal = ChildLost(f"no child can be had there: {text}")
        self.refusal.__cause__ = cause


def _require_linux() -> None:
    if sys.platform != "linux":
        raise FailedPrecondition(
            "Objects in sandboxes can be had from Linux only.",
            reason="platform_unsupported",
            remedy="Run this program on Linux, or run commands in the sandbox.",
        )


def _told(ended: JsonObject) -> str:
    """Say why a child has ended, as its host tells it."""
    reason = form.text(ended, "reason")
    told = _ENDS.get(reason)
    if told is None:
        code, number = form.number(ended, "code"), form.number(ended, "signal")
        told = f"signal {number} ended it" if number else f"it exited with {code}"
    lines = form.text(ended, "errors").strip().splitlines()
    return f"{told}: {lines[-1]}" if lines else told
