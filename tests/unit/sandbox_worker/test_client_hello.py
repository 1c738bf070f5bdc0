"""The server name of a ClientHello, read from what a real TLS client sends."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_worker.network.client_hello import HelloInvalid, read_hello


def hello(name: str | None) -> bytes:
    """Return what OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def _records(message: bytes, *sizes: int) -> bytes:
    """Split a handshake message into records of these sizes, and one with the rest."""
    pieces, at = [], 0
    for size in (*sizes, len(message)):
        piece = message[at : at + size]
        at += size
        if piece:
            pieces.append(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece)
    return b"".join(pieces)


def _renamed(name: bytes, *more: bytes) -> bytes:
    """Put other names where `a.test` was, with the lengths that go with them."""
    message = hello("a.test")[5:]
    entries = b"".join(b"\0" + len(each).to_bytes(2, "big") + each for each in (name, *more))
    listed = len(entries).to_bytes(2, "big") + entries
    extension = b"\0\0" + len(listed).to_bytes(2, "big") + listed
    plain = b"\0\0\0\x0b\0\x09\0\0\x06a.test"
    at = message.index(plain)
    return _with_extensions(message, at, at + len(plain), extension)


def _with_extensions(message: bytes, start: int, end: int, extension: bytes) -> bytes:
    grown = len(extension) - (end - start)
    fixed = 4 + 2 + 32
    session = fixed + 1 + message[fixed]
    ciphers = session + 2 + int.from_bytes(message[session : session + 2], "big")
    lengths = ciphers + 1 + message[ciphers]
    total = int.from_bytes(message[lengths : lengths + 2], "big") + grown
    body = (
        message[4:lengths]
        + total.to_bytes(2, "big")
        + message[lengths + 2 : start]
        + extension
        + message[end:]
    )
    return _records(b"\x01" + len(body).to_bytes(3, "big") + body)


@pytest.mark.parametrize("name", ["origin.test", "xn--gre-mua6b.test", "a" * 60 + ".test"])
def test_the_name_of_a_real_client(name: str) -> None:
    found = read_hello(hello(name))
    assert found is not None
    assert found.server_name == name


def test_a_client_that_names_nothing() -> None:
    found = read_hello(hello(None))
    assert found is not None
    assert found.server_name is None


@settings(deadline=None)
@given(st.lists(st.integers(1, 200), max_size=12), st.binary(max_size=20))
def test_a_hello_in_any_records_with_anything_behind(sizes: list[int], rest: bytes) -> None:
    whole = _records(hello("origin.test")[5:], *sizes)
    found = read_hello(whole + rest)
    assert found is not None
    assert found.server_name == "origin.test"


def test_a_part_is_not_judged() -> None:
    whole = hello("origin.test")
    assert all(read_hello(whole[:end]) is None for end in range(len(whole)))


def test_more_records_than_a_client_needs_are_refused() -> None:
    with pytest.raises(HelloInvalid):
        read_hello(_records(hello("origin.test")[5:], *[1] * 20))


def test_rewriting_gives_what_a_client_could_have_sent() -> None:
    found = read_hello(_renamed(b"b.test"))
    assert found is not None
    assert found.server_name == "b.test"


@pytest.mark.parametrize(
    "received",
    [
        _renamed(b"a.test", b"b.test"),
        _renamed(b""),
        _renamed("grüße".encode()),
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-client\r\n",
        b"\x16\x02\x00\x00\x05",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        b"\x80\x2e\x01\x03\x01",
        b"\x15\x03\x01\x00\x02\x02\x28",
    ],
)
def test_anything_else_is_no_hello(received: bytes) -> None:
    with pytest.raises(HelloInvalid):
        read_hello(received)


def test_two_server_name_extensions_are_refused() -> None:
    message = hello("a.test")[5:]
    plain = b"\0\0\0\x0b\0\x09\0\0\x06a.test"
    at = message.index(plain)
    with pytest.raises(HelloInvalid):
        read_hello(_with_extensions(message, at, at + len(plain), plain + plain))


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_break_it(received: bytes) -> None:
    try:
        read_hello(received)
    except HelloInvalid:
        return


@settings(deadline=None)
@given(st.data())
def test_no_change_of_a_byte_breaks_it(draw: st.DataObject) -> None:
    whole = bytearray(hello("origin.test"))
    at = draw.draw(st.integers(0, len(whole) - 1))
    whole[at] = draw.draw(st.integers(0, 255))
    try:
        read_hello(bytes(whole))
    except HelloInvalid:
        return
