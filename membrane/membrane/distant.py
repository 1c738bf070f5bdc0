"""A child of a caller elsewhere: what was `python -c BOOT` becomes it, with its standard input and
output as the byte stream.

What it prints goes to standard error, where its host keeps the end of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import platform
import socket
import sys
from _thread import start_new_thread
from typing import NoReturn, cast

from membrane import child, guest
from membrane.errors import ProtocolError
from membrane.fittings import Fittings
from membrane.multiplex import GREETING, WIRE, Greeting, Pieces, Start, greeting, read_start
from membrane.splice import Splice, Stream

_READ_BYTES = 1 << 16


def main() -> NoReturn:
    """Be a child; never returns."""
    inward = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    outward = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    try:
        start, rest = _awaited(inward)
        fault = _prepared(start)
    except ProtocolError as error:
        fault = Greeting(wire=WIRE, unsupported=str(error))
    if fault is None:
        _serve(inward, outward, start, rest)
    told = greeting(fault)
    while told:
        told = told[os.write(outward, told) :]
    os._exit(0)


def _awaited(inward: int) -> tuple[Start, bytes]:
    """Wait for the caller's greeting; give it with what has come behind it."""
    pieces = Pieces()
    while (found := pieces.next()) is None:
        content = os.read(inward, _READ_BYTES)
        if not content:
            os._exit(0)
        pieces.add(content)
    kind, _, content = found
    if kind != GREETING:
        raise ProtocolError("a caller greets first")
    return read_start(content), pieces.rest()


def _prepared(start: Start) -> Greeting | None:
    """Import what is wanted ahead; give what to answer where that fails."""
    if start.wire != WIRE:
        return Greeting(wire=WIRE, unsupported=f"the caller speaks version {start.wire}")
    here = os.getcwd()
    sys.path[:0] = [here, *(os.path.normpath(os.path.join(here, each)) for each in start.path)]
    try:
        for each in start.preload:
            importlib.import_module(each)
    except BaseException as error:
        return Greeting(wire=WIRE, unprepared=f"{type(error).__name__}: {error}"[:4096])
    return None


def _serve(inward: int, outward: int, start: Start, rest: bytes) -> NoReturn:
    control, far_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lane, far_lane = socket.socketpair()
    for descriptor in (inward, outward):
        os.set_blocking(descriptor, False)
    has_numpy = start.numpy and importlib.util.find_spec("numpy") is not None
    told = Greeting(wire=WIRE, pid=os.getpid(), python=platform.python_version(), numpy=has_numpy)
    splice = Splice(
        stream=Stream(
            inward=inward,
            outward=outward,
            read=lambda size: os.read(inward, size),
            write=lambda out: os.write(outward, out),
        ),
        control=far_control,
        lane=far_lane,
        makes_lanes=True,
        first=greeting(told),
        came=rest,
    )

    def carry() -> None:
        # However it ends, the link sees the end of its control, and ends the process.
        with contextlib.closing(splice):
            splice.run()

    def fit(link: child.ChildLink, settings: object) -> Fittings:
        bond = guest.fit(link, settings, has_numpy=has_numpy)
        return cast("Fittings", bond)

    start_new_thread(carry, ())
    child.run(
        control=control,
        lane=lane,
        fit=fit,
        isolation=start.isolation,
        shares_memory=False,
    )
