"""Pieces of one stream: whole whatever the reads are, and nothing but pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane import multiplex
from membrane.errors import ProtocolError
from membrane.multiplex import BYTES, END, LARGEST_PIECE, Greeting, Pieces, Start, piece


@given(
    contents=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**32 - 1), st.binary())),
    cuts=st.lists(st.integers(1, 40), min_size=1),
)
def test_pieces_come_out_as_they_went_in_whatever_the_reads_are(
    contents: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(piece(*each) for each in contents)
    pieces, found = Pieces(), []
    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        pieces.add(stream[at : at + size])
        at, turn = at + size, turn + 1
        while (each := pieces.next()) is not None:
            found.append(each)
    assert found == contents
    assert pieces.rest() == b""


def test_what_is_no_piece_is_refused_before_its_content_is_awaited() -> None:
    for header in (piece(END + 1, 0, b""), piece(BYTES, 1, bytes(LARGEST_PIECE + 1))[:9]):
        pieces = Pieces()
        pieces.add(header)
        with pytest.raises(ProtocolError):
            pieces.next()


@given(st.binary(max_size=200))
def test_a_greeting_is_read_or_refused(content: bytes) -> None:
    for read in (multiplex.read_greeting, multiplex.read_start):
        try:
            read(content)
        except ProtocolError:
            continue


def test_greetings_come_back() -> None:
    for told, read in (
        (Greeting(wire=1, pid=7, python="3.11.2", numpy=True), multiplex.read_greeting),
        (Start(1, ["lib"], ["json"], "walled", numpy=False), multiplex.read_start),
    ):
        pieces = Pieces()
        pieces.add(multiplex.greeting(told))
        found = pieces.next()
        assert found is not None
        assert read(found[2]) == told
