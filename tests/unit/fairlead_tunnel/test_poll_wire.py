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
    return request_head(TUNNEL, 7) + seal_ask(sealer, Ask(9, 250, 65536)) + b"".join(records)


def read_request(opener: Opener, body: bytes) -> None:
    """Read a request of that tunnel."""
    if read_head(body) != (TUNNEL, 7):
        raise PollInvalid
    open_request(opener, body)


def test_a_request_is_read_once() -> None:
    sealer, opener = pair()
    body = request(sealer)
    assert read_head(body) == (TUNNEL, 7)
    assert open_request(opener, body) == (Ask(9, 250, 65536), [b"one", b"two"])
    with pytest.raises(RecordInvalid):
        open_request(opener, body)


def test_an_answer_is_of_its_poll_only() -> None:
    sealer, opener = pair()
    body = b"\x00" + seal_said(sealer, 9) + seal_record(sealer, b"one")
    with pytest.raises(PollInvalid):
        open_answer(opener, body, 8)
    body = b"\x00" + seal_said(sealer, 9) + seal_record(sealer, b"two")
    assert open_answer(opener, body, 9) == [b"two"]


@given(st.integers(min_value=1, max_value=200))
def test_a_body_that_is_cut_is_none(left: int) -> None:
    sealer, opener = pair()
    body = request(sealer)
    try:
        _, batches = open_request(opener, body[: max(len(body) - left, 0)])
    except PollInvalid:
        return
    assert batches in ([], [b"one"])  # cut between records: what is missing is sent again


def test_an_answer_that_is_cut_is_known_as_such() -> None:
    sealer, opener = pair()
    body = b"\x00" + seal_said(sealer, 9) + seal_record(sealer, b"one")
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
