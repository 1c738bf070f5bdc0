"""Packets between parent, zygote and child: one MessagePack array each, with descriptors, on
SEQPACKET sockets.

To the zygote: [FORK, number, uid] with the child's ends of control and lane 0. From it: [READY],
[UNREADY, reason], [BORN, number] with a pidfd, [UNBORN, number, reason].
"""

from __future__ import annotations

import array
import os
import socket

import msgspec

FORK = 0
READY = 1
UNREADY = 2
BORN = 3
UNBORN = 4

_LARGEST = 1 << 14
_MOST_DESCRIPTORS = 4
_WIDTH = array.array("i").itemsize
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[int | str]).decode


def pack(*fields: int | str) -> bytes:
    """Write a packet; text is cut where it is long."""
    return _encode([each[:4096] if isinstance(each, str) else each for each in fields])


def receive(link: socket.socket, flags: int = 0) -> tuple[list[int | str], list[int]] | None:
    """Read one packet with its descriptors, which are close-on-exec; None at end-of-file, which a
    reset also means, and no fields for nonsense. Raises BlockingIOError.
    """
    for attempt in range(2):
        try:
            packet, ancillary, _, _ = link.recvmsg(
                _LARGEST,
                socket.CMSG_SPACE(_MOST_DESCRIPTORS * _WIDTH),
                flags | socket.MSG_CMSG_CLOEXEC,
            )
            break
        except BlockingIOError:
            raise
        except ConnectionResetError:
            # Told before what the other side wrote last, where it left something unread.
            if attempt:
                return None
        except OSError:
            return None
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % _WIDTH])
    if not packet:
        return None
    try:
        return _decode(packet), list(descriptors)
    except msgspec.MsgspecError:
        for descriptor in descriptors:
            os.close(descriptor)
        return [], []
