"""The bytes of frames: a round trip, the vectors, and whatever is none."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_tunnel.frames import (
    MAX_CHANNEL,
    MAX_OFFSET,
    Accepted,
    Ack,
    Alive,
    Close,
    Fin,
    Frame,
    FrameInvalid,
    Open,
    Ping,
    Reset,
    Segment,
    Window,
    batch_header,
    decode,
    encode,
)
from tests.unit.fairlead_tunnel.tunnel_vectors import VECTORS, FrameVector

CHANNELS = st.integers(1, MAX_CHANNEL)
COUNTS = st.integers(0, MAX_OFFSET)
REASONS = st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
SAYINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def ranges(most: int) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    """Return ascending ranges with both ends, from 1 to `most`."""
    ends = st.lists(st.integers(1, most), max_size=20, unique=True).map(sorted)
    return ends.map(lambda found: tuple(zip(found[::2], found[1::2], strict=False)))


FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Open, CHANNELS, TEXTS),
    st.builds(Accepted, CHANNELS),
    st.builds(Segment, CHANNELS, st.integers(0, 2**40), st.binary(min_size=1, max_size=300)),
    st.builds(Fin, CHANNELS, COUNTS),
    st.builds(Reset, CHANNELS, COUNTS, REASONS, SAYINGS),
    st.builds(Window, st.integers(0, MAX_CHANNEL), COUNTS),
    st.builds(Ack, ranges(2**64 - 1)),
    st.builds(Alive, ranges(2**32 - 1)),
    st.builds(Close, REASONS, SAYINGS),
    st.just(Ping()),
)


@given(st.lists(FRAMES, max_size=12), st.integers(1, 2**64 - 1))
def test_a_batch_is_read_as_it_was_written(frames: list[Frame], batch_id: int) -> None:
    batch = batch_header(batch_id, 1) + b"".join(map(encode, frames))
    assert decode(batch) == (batch_id, 1, frames)


@given(st.lists(FRAMES, min_size=1, max_size=3), st.data())
def test_a_batch_that_is_cut_is_none(frames: list[Frame], data: st.DataObject) -> None:
    ends = {16}
    batch = batch_header(7, 1)
    for frame in frames:
        batch += encode(frame)
        ends.add(len(batch))
    cut = data.draw(st.integers(0, len(batch) - 1).filter(lambda at: at not in ends))
    with pytest.raises(FrameInvalid):
        decode(batch[:cut])


@given(st.binary(max_size=200))
def test_whatever_bytes_are_frames_or_refused(content: bytes) -> None:
    batch = batch_header(7, 1) + content
    try:
        batch_id, lowest, frames = decode(batch)
    except FrameInvalid:
        return
    assert batch_header(batch_id, lowest) + b"".join(map(encode, frames)) == batch


@pytest.mark.parametrize("vector", VECTORS["frames"], ids=lambda vector: vector["name"])
def test_the_bytes_of_each_frame(vector: FrameVector) -> None:
    _, _, (frame,) = decode(batch_header(1, 1) + bytes.fromhex(vector["bytes"]))
    assert told(frame) == vector["frame"]
    assert encode(frame).hex() == vector["bytes"]


@pytest.mark.parametrize("vector", VECTORS["no_batches"], ids=lambda vector: vector["why"])
def test_bytes_that_are_no_batch(vector: dict[str, str]) -> None:
    with pytest.raises(FrameInvalid):
        decode(bytes.fromhex(vector["bytes"]))


def test_a_long_sentence_is_cut_between_characters() -> None:
    frame = encode(Close("gone", "é" * 1000))
    _, _, (found,) = decode(batch_header(1, 1) + frame)
    assert found == Close("gone", "é" * 512)


@pytest.mark.parametrize("reason", ["", "Gone", "a b", "x" * 65])
def test_a_reason_that_is_none(reason: str) -> None:
    with pytest.raises(ValueError, match="snake"):
        encode(Close(reason, ""))


def test_a_number_that_does_not_fit() -> None:
    with pytest.raises(struct.error):
        encode(Accepted(2**32))


def told(frame: Frame) -> dict[str, object]:
    """Return a frame as the vectors tell it."""
    said: dict[str, object] = {"type": type(frame).__name__.upper()}
    for name in frame.__match_args__:
        match getattr(frame, name):
            case bytes() | memoryview() as content:
                said[name] = content.hex()
            case tuple() as ranges:
                said[name] = [[*each] for each in ranges]
            case value:
                said[name] = value
    return said
