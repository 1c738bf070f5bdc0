"""Packets between a service and the small programs that it starts processes with: NUL-separated
fields, one SEQPACKET message each.

No field can hold a NUL: arguments, environment and paths may not, and numbers are decimal text.
"""

from __future__ import annotations

import array
import errno
import os
import socket

LARGEST = 384 * 1024
"""Longest packet in bytes: 128 KiB of arguments, 128 KiB of environment and their frame fit."""

DESCRIPTORS = 3
"""Descriptors of a program: its standard input, output and error."""

MOST_DESCRIPTORS = 250
"""Most descriptors that travel with one packet; the kernel takes 253."""


class PacketTooLong(OSError):
    """A packet has more than LARGEST bytes; nothing was sent."""

    def __init__(self, size: int) -> None:
        super().__init__(errno.E2BIG, f"a packet of {size} bytes; {LARGEST} is the most")


def pack(*fields: bytes) -> bytes:
    """Join `fields`; the first one is the verb, so that no packet is empty (an empty one would look
    like EOF). Raises PacketTooLong.
    """
    packet = b"\0".join(fields)
    if len(packet) > LARGEST:
        raise PacketTooLong(len(packet))
    return packet


def unpack(packet: bytes) -> list[bytes]:
    """Split a packet into its fields."""
    return packet.split(b"\0")


def number(value: int) -> bytes:
    """Write a number as a field."""
    return b"%d" % value


def widen(link: socket.socket) -> None:
    """Make room for the largest packet on this end; the kernel doubles the value and caps it at
    wmem_max.
    """
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)


def receive(link: socket.socket) -> tuple[list[bytes], list[int]] | None:
    """Read one packet with its descriptors; None at end-of-file, which a reset also means, and for
    a packet that is too long: its end would be lost, and pack() makes none.

    The descriptors are close-on-exec. Not socket.recv_fds: it ignores its flags in Python 3.11.
    """
    width = array.array("i").itemsize
    try:
        # To make room for the largest one each time takes four more system calls than to ask first.
        size = link.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC)
        packet, ancillary, flags, _ = link.recvmsg(
            min(size, LARGEST),
            socket.CMSG_SPACE(MOST_DESCRIPTORS * width),
            socket.MSG_CMSG_CLOEXEC,
        )
    except (BlockingIOError, InterruptedError):
        raise
    except OSError:
        return None
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % width])
    if not packet or flags & socket.MSG_TRUNC:
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    return unpack(packet), list(descriptors)
