"""The bodies of polls: whole ones are read, all others are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_tunnel.handshake import AttachRefused, HandshakeInvalid, refusal
from fairlead_tunnel.poll_wire import (
    Ask,
    PollCut,
    PollInvalid,
    open_answer,
    open_request,
    read_head,
    request_head,
    seal_ask,
    seal_record,
    seal_said,
)
from fairlead_tunnel.records import Opener, RecordInvalid, Sealer, Suite
from tests.unit.fairlead_tunnel.tunnel_vectors import VECTORS, PollVector

KEY = bytes(range(32))
TUNNEL = bytes(range(16))


def pair() -> tuple[Sealer, Opener]:
    """Return both ends of one direction."""
    return (
        Sealer(suite=Suite.AES_256_GCM, key=KEY),
        Opener(suite=Suite.AES_256_GCM, key=KEY),
    )


def request(sealer: Sealer) -> bytes:
    """Return a request with two batches."""
    records = [seal_record(sealer, each) for each in (b"one", b"two")]
    return request_head(TUNNEL, 7) + seal_ask(sealer, Ask(9, 250, 65536, 2)) + b"".join(records)


def read_request(opener: Opener, body: bytes) -> None:
    """Read a request of that tunnel."""
    if read_head(body) != (TUNNEL, 7):
        raise PollInvalid
    open_request(opener, body)


def test_a_request_is_read_once() -> None:
    sealer, opener = pair()
    body = request(sealer)
    assert read_head(body) == (TUNNEL, 7)
    assert open_request(opener, body) == (Ask(9, 250, 65536, 2), [b"one", b"two"])
    with pytest.raises(RecordInvalid):
        open_request(opener, body)


def test_an_answer_is_of_its_poll_only() -> None:
    sealer, opener = pair()
    body = b"\x00" + seal_said(sealer, 9, 1) + seal_record(sealer, b"one")
    with pytest.raises(PollInvalid):
        open_answer(opener, body, 8)
    body = b"\x00" + seal_said(sealer, 9, 1) + seal_record(sealer, b"two")
    assert open_answer(opener, body, 9) == [b"two"]


@given(st.integers(min_value=1, max_value=200))
def test_a_body_that_is_cut_is_none(left: int) -> None:
    sealer, opener = pair()
    body = request(sealer)
    with pytest.raises(PollInvalid):
        read_request(opener, body[: max(len(body) - left, 0)])


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_body_that_is_cut_between_two_records_is_known_as_such(count: int) -> None:
    sealer, opener = pair()
    said = seal_said(sealer, 9, 3)
    records = [seal_record(sealer, each) for each in (b"one", b"two", b"three")]
    with pytest.raises(PollCut):
        open_answer(opener, b"\x00" + said + b"".join(records[:count]), 9)
    ask = seal_ask(sealer, Ask(9, 250, 65536, 3))
    records = [seal_record(sealer, each) for each in (b"one", b"two", b"three")]
    with pytest.raises(PollCut):
        open_request(opener, request_head(TUNNEL, 7) + ask + b"".join(records[:count]))


def test_a_body_with_more_records_than_it_says_is_none() -> None:
    sealer, opener = pair()
    body = b"\x00" + seal_said(sealer, 9, 0) + seal_record(sealer, b"one")
    with pytest.raises(PollInvalid):
        open_answer(opener, body, 9)


def test_an_answer_that_is_cut_is_known_as_such() -> None:
    sealer, opener = pair()
    body = b"\x00" + seal_said(sealer, 9, 1) + seal_record(sealer, b"one")
    with pytest.raises(PollCut):
        open_answer(opener, body[:-1], 9)


@given(st.binary(max_size=200))
def test_bytes_of_anybody_are_refused(body: bytes) -> None:
    _, opener = pair()
    with pytest.raises((PollInvalid, RecordInvalid, AttachRefused, HandshakeInvalid)):
        open_answer(opener, body, 9)
    with pytest.raises((PollInvalid, RecordInvalid)):
        open_request(opener, body)


@pytest.mark.parametrize("at", range(0, 120, 7))
def test_a_request_that_was_changed_is_refused(at: int) -> None:
    sealer, opener = pair()
    body = bytearray(request(sealer))
    body[at % len(body)] ^= 1
    with pytest.raises((PollInvalid, RecordInvalid)):
        read_request(opener, bytes(body))


def test_a_refusal_is_raised() -> None:
    _, opener = pair()
    with pytest.raises(AttachRefused) as refused:
        open_answer(opener, refusal("tunnel_unknown", "It is gone."), 9)
    assert refused.value.reason == "tunnel_unknown"


@pytest.mark.parametrize("vector", VECTORS["polls"], ids=lambda vector: vector["name"])
def test_vectors(vector: PollVector) -> None:
    opener = Opener(suite=Suite[vector["suite"]], key=bytes.fromhex(vector["key"]))
    body, poll = bytes.fromhex(vector["bytes"]), vector["poll"]

    def read() -> list[bytes]:
        if not body.startswith(b"FLP"):
            return open_answer(opener, body, poll)
        ask, batches = open_request(opener, body)
        assert ask.poll == poll
        return batches

    if vector["batches"] is None:
        with pytest.raises(PollCut):
            read()
    else:
        assert read() == [bytes.fromhex(each) for each in vector["batches"]]
