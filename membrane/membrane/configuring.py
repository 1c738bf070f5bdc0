"""The first exchange with a child: what its session is, and whether it can serve that."""

from __future__ import annotations

import socket
import time

import msgspec

from membrane.errors import ProtocolError
from membrane.frames import CONFIGURE, REPLY, REQUEST
from membrane.framing import FramedEnd

_START_SECONDS = 60.0


def configure(lane: socket.socket, settings: object) -> None:
    """Make the child behind `lane`, which may be hostile already, a session's.

    Waits for a minute at most. Raises LaneLost, DeadlineExceeded, and ProtocolError where it
    answers anything but that it is configured.
    """
    end = FramedEnd(end=lane)
    end.ends_at = time.monotonic() + _START_SECONDS
    end.write_frame(msgspec.msgpack.encode([REQUEST, 1, CONFIGURE, None, 0, "", settings, 0, []]))
    try:
        answer = msgspec.msgpack.decode(end.read_frame(), type=list)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the child's first answer cannot be read: {error}") from None
    if len(answer) != 5 or answer[:2] != [REPLY, 1]:
        raise ProtocolError(f"the child cannot be configured: {str(answer[3:4])[:200]}")
