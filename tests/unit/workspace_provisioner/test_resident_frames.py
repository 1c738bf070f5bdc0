"""Frames of SSH hosts: both ends' copies say the same, in whatever pieces it arrives."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_sdk import ssh_frames as client
from workspace_provisioner.resident import frames as host

NAMES = st.text(st.characters(codec="utf-8"), max_size=20).filter(
    lambda name: name not in ("id", "type")
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=10,
)
FRAMES = st.tuples(
    st.integers(0, 2**31 - 1),
    st.text(max_size=10),
    st.binary(max_size=300),
    st.dictionaries(NAMES, VALUES, max_size=4),
)


def pieces(content: bytes, sizes: list[int]) -> list[bytes]:
    found, place = [], 0
    for size in sizes:
        found.append(content[place : place + size])
        place += size
    return [*found, content[place:]]


@given(st.lists(FRAMES, max_size=5), st.lists(st.integers(0, 64), max_size=30))
def test_what_one_end_sends_the_other_one_understands(
    frames: list[tuple[int, str, bytes, dict[str, object]]], sizes: list[int]
) -> None:
    sent = [client.encoded(call, kind, load, **rest) for call, kind, load, rest in frames]
    assert sent == [host.encoded(call, kind, load, **rest) for call, kind, load, rest in frames]
    for decoder in (client.Decoder(), host.Decoder()):
        found = [
            (frame.call, frame.type, frame.payload, dict(frame.fields))
            for piece in pieces(b"".join(sent), sizes)
            for frame in decoder.feed(piece)
        ]
        assert found == frames


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b'{"id": 1}',
        b'{"type": "call"}',
        b'{"id": -1, "type": "call"}',
        b'{"id": true, "type": "call"}',
        b'{"id": 2147483648, "type": "call"}',
        b'{"id": 1, "type": 2}',
        b"\xff\xff",
        b"[" * 100_000,
    ],
)
def test_a_header_that_is_none_ends_the_connection(header: bytes) -> None:
    frame = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    with pytest.raises(host.FrameInvalid):
        list(host.Decoder().feed(frame))
    with pytest.raises(client.FrameInvalid):
        list(client.Decoder().feed(frame))


@pytest.mark.parametrize(
    ("length", "header"),
    [(0, 0), (4, 5), (2**32 - 1, 2), (host.MAX_HEADER_BYTES + 9, host.MAX_HEADER_BYTES + 1)],
)
def test_a_length_that_lies_is_not_waited_for(length: int, header: int) -> None:
    start = length.to_bytes(4, "big") + header.to_bytes(4, "big")
    with pytest.raises(host.FrameInvalid):
        list(host.Decoder().feed(start))
    with pytest.raises(client.FrameInvalid):
        list(client.Decoder().feed(start))


@given(st.binary(max_size=200))
def test_noise_is_no_frame_or_none_yet(noise: bytes) -> None:
    with suppress(client.FrameInvalid):
        assert all(len(frame.payload) < len(noise) for frame in client.Decoder().feed(noise))
    with suppress(host.FrameInvalid):
        assert all(len(frame.payload) < len(noise) for frame in host.Decoder().feed(noise))


def test_too_long_a_frame_is_not_sent() -> None:
    with pytest.raises(host.FrameInvalid):
        host.encoded(1, "bytes", b"x" * (host.MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(client.FrameInvalid):
        client.encoded(1, "call", name="x" * client.MAX_HEADER_BYTES)
