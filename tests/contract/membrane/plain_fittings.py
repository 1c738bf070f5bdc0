"""The smallest fittings: plain values, no handles, and operations by name on either side.

They let sessions be tested for themselves; the real ones have tests of their own.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from membrane.child import ChildLink
from membrane.errors import ProtocolError
from membrane.fittings import Fittings
from membrane.frames import CALL
from membrane.lane import Lane
from membrane.parent_link import ParentLink
from membrane.regions import LaneRegions
from membrane.session import Session
from membrane.travelling import Threads

PlainLink = ChildLink | ParentLink


class PlainCodec:
    """msgspec, and nothing beside."""

    def __init__(self) -> None:
        self.encode_plain = msgspec.msgpack.Encoder().encode
        self.decode_plain = msgspec.msgpack.Decoder().decode

    def encode(self, message: list[object], *, policy: int, regions: object) -> bytes:
        return self.encode_plain(message)

    def decode(self, buffer: memoryview, regions: object, views: bool = False) -> list[object]:
        try:
            return cast("list[object]", self.decode_plain(buffer))
        except msgspec.MsgspecError as error:
            raise ProtocolError(str(error)) from None

    def make_regions(self, lane: Lane) -> LaneRegions:
        return LaneRegions(lane=lane)


class Nothing:
    """No handles."""

    due = ()

    def __init__(self) -> None:
        self.threads = Threads()

    def release(self, released: object) -> None:
        raise ProtocolError("there are no handles")

    def drain(self) -> None:
        return None

    def received(self) -> None:
        """Nothing is held."""

    def undo(self) -> None:
        """Nothing was sent."""


class PlainFittings:
    """Serves what is in a table of functions."""

    def __init__(self, table: dict[str, Callable[..., object]]) -> None:
        self.table = table
        self.codec = PlainCodec()
        self.exports = self.imports = self.marshal = Nothing()

    def serve(
        self, op: int, target: int, name: str, extra: object, values: Sequence[object]
    ) -> tuple[object, Sequence[object]]:
        return None, [self.table[name](*values)]

    def pack_error(self, error: BaseException) -> tuple[object, Sequence[object]]:
        return [type(error).__name__, str(error)], []

    def unpack_error(self, payload: object, values: Sequence[object]) -> BaseException:
        kind, text = cast("list[str]", payload)
        known = {"ValueError": ValueError, "KeyError": KeyError, "ChildLost": ConnectionError}
        return known.get(kind, RuntimeError)(f"{kind}: {text}")


def call(link: PlainLink, name: str, *values: object, options: object = None) -> object:
    """Call a function of the other side."""
    _, found = link.request(CALL, 0, name, None, values, options=options)  # type: ignore[arg-type]
    return found[0]


class Guest:
    """What a child can do in tests."""

    def __init__(self, link: ChildLink, settings: object) -> None:
        self.link = link
        self.settings = settings
        self.counts = 0
        self.lock = threading.RLock()

    def echo(self, value: object) -> object:
        return value

    def told(self) -> object:
        return self.settings

    def add(self) -> int:
        with self.lock:
            self.counts += 1
            return self.counts

    def fail(self, text: str) -> None:
        raise ValueError(text)

    def pid(self) -> int:
        return os.getpid()

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def spin(self) -> None:
        while True:
            pass

    def hold(self, begin: str = "") -> None:
        """Keep the interpreter to itself, whatever comes: nothing else of this process runs.

        `begin` is a function of the parent, which is called before.
        """
        while True:
            try:
                if begin:
                    call(self.link, begin)
                sys.setswitchinterval(1e6)
                while True:
                    pass
            except BaseException:
                begin = ""

    def ask(self, name: str, *values: object) -> object:
        return call(self.link, name, *values)

    def ask_from_thread(self, name: str, *values: object) -> object:
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(call(self.link, name, *values)))
        thread.start()
        thread.join()
        return found[0] if found else "nothing"

    def thread(self) -> int:
        return threading.get_ident()

    def nest(self, depth: int) -> int:
        if depth == 0:
            return 0
        return 1 + cast("int", call(self.link, "nest", depth - 1))

    def start_program(self) -> int:
        return subprocess.Popen(["sleep", "1000"]).pid

    def modules(self) -> list[str]:
        return sorted(sys.modules)

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def draw(self) -> float:
        import random

        return random.random()  # noqa: S311 - no secret

    def write(self, path: str) -> str:
        with open(path, "w", encoding="utf-8") as file:
            file.write("written")
        return path

    def read(self, path: str) -> str:
        with open(path, encoding="utf-8") as file:
            return file.read()

    def names(self, path: str) -> list[str]:
        return os.listdir(path)

    def limits(self) -> list[int]:
        return [
            resource.getrlimit(which)[1]
            for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
        ]

    def has_terminal(self) -> bool:
        try:
            os.close(os.open("/dev/tty", os.O_RDWR))
        except OSError:
            return False
        return True

    def speak_nonsense(self) -> None:
        self.link._control.send(b"\xc1")


def fit_child(link: ChildLink, settings: object) -> Fittings:
    """Fit the child's side."""
    guest = Guest(link, settings)
    table = {name: getattr(guest, name) for name in dir(guest) if callable(getattr(guest, name))}
    return cast("Fittings", PlainFittings(table))


def unfit_child(link: ChildLink, settings: object) -> Fittings:
    """Fail to fit."""
    raise RuntimeError("this child cannot be fitted")


def fit_parent(
    table: dict[str, Callable[..., object]],
) -> Callable[[ParentLink, Session], Fittings]:
    """Return what fits the parent's side with a table of callbacks."""
    return lambda _link, _session: cast("Fittings", PlainFittings(table))
