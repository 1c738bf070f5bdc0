"""What a child does while it waits for a session: the first steps of one, played to nobody.

A child starts as a copy of its zygote, and each page that it first writes to is copied then: some
500 of them until its first call is answered, 3 to 5 us each. Those of the membrane's own steps are
copied ahead this way.
"""

from __future__ import annotations

import contextlib
import gc
import socket
from typing import TYPE_CHECKING, Final

from membrane.extensions import encode_plain
from membrane.frames import CALL, CONSTRUCT, LOAD, REQUEST
from membrane.framing import LaneLost, pack_length
from membrane.lane import Lane

if TYPE_CHECKING:
    from membrane.fittings import Fittings

TARGET: Final = "membrane.rehearsed:Rehearsed"
_CLASS, _OBJECT = 1, 2
"""The handles that a fresh session gives them."""

_STEPS: Final[tuple[tuple[int, int, str, object, list[object]], ...]] = (
    (LOAD, 0, TARGET, None, []),
    (CONSTRUCT, _CLASS, "", ["size"], ["name", 1]),
    (CALL, _OBJECT, "add", None, [1]),
    (CALL, _OBJECT, "describe", None, [{"one": 1, "two": [2.0, "zwei", b"2", None]}]),
)


def rehearse(fittings: Fittings) -> list[int]:
    """Serve the first requests of a session with fittings that are thrown away; returns of what
    kind the answers were. The parent's requests are not read.
    """
    # Packets: the steps are all written before the first one is read.
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with far:
        lane = Lane(number=-1, end=near, fittings=fittings, serving={}, is_child=True)
        for number, (op, target, name, extra, values) in enumerate(_STEPS, start=1):
            frame = encode_plain([REQUEST, number, op, None, target, name, extra, 0, values])
            far.send(pack_length(len(frame)) + frame)
        far.shutdown(socket.SHUT_WR)
        with contextlib.suppress(LaneLost):
            lane.serve()
        lane.close()
        # The first byte behind a length and the array's own says the kind.
        answered = [far.recv(1 << 16)[5] for _ in _STEPS]
    gc.collect()
    return answered
