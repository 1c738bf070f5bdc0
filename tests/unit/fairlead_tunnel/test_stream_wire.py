"""Bodies of carriers over two requests: however they are cut, the same messages come out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_tunnel.message_stream import MOST_MESSAGE_BYTES
from fairlead_tunnel.stream_wire import (
    LAST_CHUNK,
    BodyInvalid,
    ChunkedBody,
    MessageReader,
    chunk,
    framed,
)

MESSAGES = st.lists(st.binary(max_size=300), max_size=8)
CUTS = st.lists(st.integers(0, 4000), max_size=8)


def pieces(content: bytes, cuts: list[int]) -> list[bytes]:
    """Cut bytes at these places."""
    places = sorted({0, len(content), *(each for each in cuts if each < len(content))})
    return [content[start:end] for start, end in itertools.pairwise(places)]


def read(body: list[bytes]) -> list[bytes]:
    """Return the messages of a chunked body."""
    chunks, reader = ChunkedBody(), MessageReader()
    return [
        message for piece in body for part in chunks.take(piece) for message in reader.take(part)
    ]


@given(MESSAGES, CUTS, CUTS)
def test_messages_come_out_however_a_body_is_cut(
    messages: list[bytes], chunk_cuts: list[int], cuts: list[int]
) -> None:
    body = b"".join(map(framed, messages))
    chunked = b"".join(map(chunk, pieces(body, chunk_cuts))) + LAST_CHUNK
    assert read(pieces(chunked, cuts)) == messages


def test_a_body_has_ended_with_its_last_chunk_and_trailer() -> None:
    chunks = ChunkedBody()
    assert b"".join(chunks.take(b"3;a=b\r\nabc\r\n0\r\nx: y\r\n")) == b"abc"
    assert not chunks.has_ended
    assert list(chunks.take(b"\r\nmore")) == []
    assert chunks.has_ended


@pytest.mark.parametrize("body", [b"x\r\n", b"-1\r\n", b"1\r\nab\r\n", b"1" * 5000])
def test_what_is_no_chunk_is_refused(body: bytes) -> None:
    with pytest.raises(BodyInvalid):
        list(ChunkedBody().take(body))


def test_a_message_that_is_longer_than_any_is_refused_by_its_length() -> None:
    with pytest.raises(BodyInvalid):
        list(MessageReader().take((MOST_MESSAGE_BYTES + 1).to_bytes(4, "big")))
