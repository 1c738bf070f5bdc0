"""The handshake: its vectors, both ends, and every hello that is none."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from noise.connection import Keypair

from fairlead_tunnel.handshake import (
    MAX_EARLY_BYTES,
    AttachRefused,
    ClientHandshake,
    GatewayHandshake,
    HandshakeInvalid,
    Hello,
    Kind,
    attach_psk,
    attach_token,
    read_attach_token,
    read_hello,
    refusal,
)
from fairlead_tunnel.records import Suite
from tests.unit.fairlead_tunnel.tunnel_vectors import VECTORS, HandshakeVector

PRIVATE = bytes(range(1, 33))
PSK = bytes(range(32))
SECRET = bytes(range(100, 132))


def public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def client(
    *, psk: bytes = PSK, kind: Kind = Kind.TICKET, gateway: bytes = PRIVATE
) -> ClientHandshake:
    return ClientHandshake(
        suite=Suite.AES_256_GCM,
        kind=kind,
        token=b"a ticket",
        psk=psk,
        gateway_key=public(gateway),
    )


def read(received: bytes) -> Hello:
    found = read_hello(received)
    assert found is not None
    assert found[1] == len(received)
    return found[0]


def gateway(hello: bytes, *, psk: bytes = PSK, private: bytes = PRIVATE) -> GatewayHandshake:
    return GatewayHandshake(read(hello), psk=psk, private_key=private)


@pytest.mark.parametrize(
    "vector", VECTORS["handshakes"], ids=lambda vector: f"{vector['suite']}-{vector['kind']}"
)
def test_both_messages_with_fixed_keys(vector: HandshakeVector) -> None:
    private = bytes.fromhex(vector["gateway_private"])
    psk = bytes.fromhex(vector["psk"])
    one = ClientHandshake(
        suite=Suite[vector["suite"]],
        kind=Kind[vector["kind"]],
        token=bytes.fromhex(vector["token"]),
        psk=psk,
        gateway_key=public(private),
    )
    fix_ephemeral(one, vector["client_ephemeral"])
    hello = one.hello(bytes.fromhex(vector["early"]))
    assert hello.hex() == vector["hello"]
    other = GatewayHandshake(read(hello), psk=psk, private_key=private)
    fix_ephemeral(other, vector["gateway_ephemeral"])
    assert other.early().hex() == vector["early"]
    answer, theirs = other.answer(
        secret=bytes.fromhex(vector["secret"]), batch=bytes.fromhex(vector["reply"])
    )
    assert answer.hex() == vector["answer"]
    assert theirs.send.hex() == vector["gateway_key"]
    assert theirs.receive.hex() == vector["client_key"]
    done = one.finish(answer)
    assert done is not None
    ours, secret, reply, size = done
    assert (ours.send, ours.receive) == (theirs.receive, theirs.send)
    assert (secret.hex(), reply.hex(), size) == (vector["secret"], vector["reply"], len(answer))


def test_two_handshakes_make_different_keys() -> None:
    keys = set()
    for _ in range(2):
        one = client()
        other = gateway(one.hello())
        other.early()
        answer, theirs = other.answer(secret=SECRET)
        done = one.finish(answer)
        assert done is not None
        keys |= {theirs.send, theirs.receive, done[0].send, done[0].receive}
    assert len(keys) == 4


@given(st.data())
def test_a_hello_in_pieces_is_waited_for(data: st.DataObject) -> None:
    hello = client().hello(b"early")
    cut = data.draw(st.integers(0, len(hello) - 1))
    assert read_hello(hello[:cut]) is None
    assert read_hello(hello + b"more") == (read(hello), len(hello))


@given(st.data())
def test_a_changed_hello_is_refused(data: st.DataObject) -> None:
    hello = bytearray(client().hello(b"early"))
    place = data.draw(st.integers(0, len(hello) - 1))
    hello[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(HandshakeInvalid):
        early_of(bytes(hello))


@pytest.mark.parametrize("which", ["psk", "gateway"])
def test_without_ticket_or_key_nothing_is_read(which: str) -> None:
    hello = client(psk=bytes(32)).hello() if which == "psk" else client(gateway=SECRET).hello()
    with pytest.raises(HandshakeInvalid, match="without the keys"):
        gateway(hello).early()


@given(st.data())
def test_a_changed_answer_is_refused(data: st.DataObject) -> None:
    one = client()
    other = gateway(one.hello())
    other.early()
    answer = bytearray(other.answer(secret=SECRET, batch=b"reply")[0])
    place = data.draw(st.integers(0, len(answer) - 1))
    answer[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((HandshakeInvalid, AttachRefused)):
        finish(one, bytes(answer))


@given(st.binary(max_size=120))
def test_whatever_message_is_refused(message: bytes) -> None:
    told = len(message).to_bytes(2, "big") + message
    one = client()
    head = one.hello()[:16]
    with pytest.raises(HandshakeInvalid):
        early_of(head + told)
    with pytest.raises(HandshakeInvalid):
        finish(one, b"\x00" + told)


def test_an_answer_in_pieces_is_waited_for() -> None:
    one = client()
    other = gateway(one.hello())
    other.early()
    answer, _ = other.answer(secret=SECRET, batch=b"reply")
    assert all(one.finish(answer[:cut]) is None for cut in range(len(answer)))
    done = one.finish(answer + b"a record")
    assert done is not None
    assert done[1:] == (SECRET, b"reply", len(answer))


def test_a_refusal_says_why() -> None:
    answer = refusal("tunnel_unknown", "The gateway was started anew.")
    one = client()
    assert all(one.finish(answer[:cut]) is None for cut in range(len(answer)))
    with pytest.raises(AttachRefused, match="started anew") as refused:
        one.finish(answer)
    assert refused.value.reason == "tunnel_unknown"


@pytest.mark.parametrize(
    "received",
    [
        b"GET / HTTP/1.1",
        b"FLT\x02",
        b"FLT\x01\x03\x01\x00\x00",
        b"FLT\x01\x01\x03\x00\x00",
        b"FLT\x01\x01\x01\x04\x01",
        b"FLT\x01\x01\x01\x00\x00\xff\xff" + bytes(65535),
    ],
    ids=["http", "version", "suite", "kind", "token", "message"],
)
def test_what_is_no_hello(received: bytes) -> None:
    with pytest.raises(HandshakeInvalid):
        read_hello(received)


@pytest.mark.parametrize("received", [b"\x02", b"HTTP/1.1 400", b"\x01\x01\xff\x00\x00"])
def test_what_is_no_answer(received: bytes) -> None:
    one = client()
    one.hello()
    with pytest.raises((HandshakeInvalid, AttachRefused)):
        one.finish(received + bytes(40000))


def test_early_data_has_a_limit() -> None:
    assert client().hello(bytes(MAX_EARLY_BYTES))
    with pytest.raises(ValueError, match="32 KiB"):
        client().hello(bytes(MAX_EARLY_BYTES + 1))


def test_each_attach_has_a_psk_of_its_own() -> None:
    assert len({attach_psk(SECRET, attach) for attach in range(1, 20)}) == 19
    assert read_attach_token(attach_token(bytes(range(16)), 7)) == (bytes(range(16)), 7)
    with pytest.raises(HandshakeInvalid):
        read_attach_token(b"short")


def early_of(hello: bytes) -> bytes:
    """Read a hello as a gateway does; one whose length was changed never comes to an end."""
    found = read_hello(hello)
    if found is None:
        raise HandshakeInvalid("more would have to come")
    return GatewayHandshake(found[0], psk=PSK, private_key=PRIVATE).early()


def finish(one: ClientHandshake, answer: bytes) -> None:
    """Read an answer; one whose length was changed never comes to an end."""
    if one.finish(answer) is None:
        raise HandshakeInvalid("more would have to come")


def fix_ephemeral(handshake: ClientHandshake | GatewayHandshake, private: str) -> None:
    """Give a side the ephemeral key of a vector, which only tests may do."""
    noise = handshake._noise
    noise.set_keypair_from_private_bytes(Keypair.EPHEMERAL, bytes.fromhex(private))
    with pytest.warns(UserWarning, match="ephemeral"):
        noise.start_handshake()
