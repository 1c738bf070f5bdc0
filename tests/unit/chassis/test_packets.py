"""Packets of fields: what fits arrives whole, what does not is refused and never cut."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chassis.packets import LARGEST, PacketTooLong, pack, receive, unpack, widen

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        widen(ours)
        yield ours, theirs


@given(st.lists(st.binary(max_size=20).map(lambda each: each.replace(b"\0", b"")), min_size=1))
def test_fields_come_back_as_they_were(fields: list[bytes]) -> None:
    assert unpack(pack(*fields)) == fields


def test_the_longest_packet_arrives_whole(ends: Ends) -> None:
    ours, theirs = ends
    packet = pack(b"start", b"x" * (LARGEST - 6))
    assert len(packet) == LARGEST
    ours.send(packet)
    assert receive(theirs) == ([b"start", b"x" * (LARGEST - 6)], [])


def test_a_longer_one_is_refused() -> None:
    with pytest.raises(PacketTooLong, match=str(LARGEST)):
        pack(b"start", b"x" * (LARGEST - 5))


def test_one_that_was_sent_all_the_same_is_the_end_and_leaves_no_descriptor(ends: Ends) -> None:
    ours, theirs = ends
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(ours, [b"x" * (LARGEST + 1)], [0, 1])
    assert receive(theirs) is None
    assert len(os.listdir("/proc/self/fd")) == before
