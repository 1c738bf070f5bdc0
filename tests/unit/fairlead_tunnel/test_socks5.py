"""SOCKS5 without I/O: every message, however it is cut, and what is none."""

from __future__ import annotations

import ipaddress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_tunnel.socks5 import (
    Asked,
    Credentials,
    Outcome,
    Refused,
    Reply,
    Socks5Server,
    encode_reply,
    reply_of,
)
from fairlead_tunnel.targets import Target
from tests.unit.fairlead_tunnel.tunnel_vectors import SOCKS_VECTORS, SocksVector

GREETING = b"\x05\x01\x00"
CREDENTIALS = Credentials(b"ada", b"enigma")


def request(host: str, port: int, *, command: int = 1) -> bytes:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        where = bytes((3, len(host))) + host.encode()
    else:
        where = bytes((1 if address.version == 4 else 4,)) + address.packed
    return bytes((5, command, 0)) + where + port.to_bytes(2, "big")


def shown(user: bytes, password: bytes) -> bytes:
    return bytes((1, len(user))) + user + bytes((len(password),)) + password


def outcome_of(content: bytes, server: Socks5Server | None = None) -> Outcome | None:
    return (server or Socks5Server()).receive(content)


@pytest.mark.parametrize(
    ("host", "target"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8::1", "[2001:db8::1]"),
        ("::ffff:10.0.0.7", "[::ffff:10.0.0.7]"),
        ("a" * 246, "a" * 246),
        ("db.internal", "db.internal"),
        ("localhost", ""),
        ("LocalHost.", ""),
        ("sandbox", ""),
        ("127.0.0.1", ""),
        ("::1", ""),
    ],
)
def test_a_destination_is_the_sandbox_or_a_host(host: str, target: str) -> None:
    assert outcome_of(GREETING + request(host, 8080)) == Asked(Target(8080, target), b"")


def test_a_name_may_be_an_address_in_brackets() -> None:
    name = b"[2001:db8::1]"
    asked = b"\x05\x01\x00\x03" + bytes((len(name),)) + name + b"\x01\xbb"
    assert outcome_of(GREETING + asked) == Asked(Target(443, "[2001:db8::1]"), b"")


@pytest.mark.parametrize("command", [2, 3, 0, 255])
def test_what_is_no_connect_is_refused_as_such(command: int) -> None:
    server = Socks5Server()
    found = server.receive(GREETING + request("db.internal", 1, command=command))
    assert isinstance(found, Refused)
    assert server.take_outgoing() == b"\x05\x00" + encode_reply(Reply.COMMAND_UNSUPPORTED)


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        (b"\x05\x01\x00\x02", Reply.ADDRESS_TYPE_UNSUPPORTED),
        (request("db internal", 80), Reply.HOST_UNREACHABLE),
        (request("db.internal", 0), Reply.HOST_UNREACHABLE),
        (request("a" * 249, 80), Reply.HOST_UNREACHABLE),  # an OPEN has no room for it
        (b"\x05\x01\x00\x03\x00\x00\x50", Reply.HOST_UNREACHABLE),
        (b"\x05\x01\x00\x03\x02\xff\xfe\x00\x50", Reply.HOST_UNREACHABLE),
    ],
)
def test_a_request_that_names_nothing_is_answered(asked: bytes, reply: Reply) -> None:
    server = Socks5Server()
    assert isinstance(server.receive(GREETING + asked), Refused)
    assert server.take_outgoing()[2:] == encode_reply(reply)


@pytest.mark.parametrize("first", [b"\x04\x01", b"GET / HTTP/1.1\r\n", b"\x16\x03"])
def test_another_protocol_is_answered_with_nothing(first: bytes) -> None:
    server = Socks5Server()
    assert isinstance(server.receive(first), Refused)
    assert server.take_outgoing() == b""


@pytest.mark.parametrize(
    ("credentials", "methods"),
    [(None, b"\x02"), (None, b""), (CREDENTIALS, b"\x00"), (CREDENTIALS, b"\x00\x01")],
)
def test_a_client_without_a_method_that_is_taken_is_told(
    credentials: Credentials | None, methods: bytes
) -> None:
    server = Socks5Server(credentials=credentials)
    assert isinstance(server.receive(bytes((5, len(methods))) + methods), Refused)
    assert server.take_outgoing() == b"\x05\xff"


def test_a_client_with_the_right_password_is_let_in() -> None:
    server = Socks5Server(credentials=CREDENTIALS)
    content = b"\x05\x02\x00\x02" + shown(b"ada", b"enigma") + request("sandbox", 80) + b"GET"
    assert server.receive(content) == Asked(Target(80), b"GET")
    assert server.take_outgoing() == b"\x05\x02\x01\x00"


@pytest.mark.parametrize(
    ("user", "password"),
    [(b"ada", b"enigme"), (b"bob", b"enigma"), (b"", b""), (b"ada", b"enigma\x00")],
)
def test_a_wrong_password_ends_it(user: bytes, password: bytes) -> None:
    server = Socks5Server(credentials=CREDENTIALS)
    assert isinstance(server.receive(b"\x05\x01\x02" + shown(user, password)), Refused)
    assert server.take_outgoing() == b"\x05\x02\x01\x01"
    assert server.receive(request("sandbox", 80)) is None


@pytest.mark.parametrize(("user", "password"), [(b"", b"x"), (b"x", b""), (b"x" * 256, b"x")])
def test_a_name_without_a_password_is_no_pair(user: bytes, password: bytes) -> None:
    with pytest.raises(ValueError, match="1 to 255"):
        Credentials(user, password)


def test_a_password_is_not_printed() -> None:
    assert "enigma" not in repr(CREDENTIALS)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("dial_refused", 5),
        ("port_refused", 5),
        ("host_unreachable", 4),
        ("host_unknown", 4),
        ("target_denied", 2),
        ("dial_timeout", 6),
        ("gateway_unreachable", 3),
        ("tunnel_unknown", 1),
    ],
)
def test_each_reason_has_its_code(reason: str, code: int) -> None:
    assert encode_reply(reply_of(reason)) == bytes((5, code, 0, 1)) + bytes(6)


def server_of(vector: SocksVector) -> Socks5Server:
    pair = vector["credentials"]
    if pair is None:
        return Socks5Server()
    user, password = map(bytes.fromhex, pair)
    return Socks5Server(credentials=Credentials(user, password))


@pytest.mark.parametrize("vector", SOCKS_VECTORS, ids=lambda vector: vector["name"])
def test_clients_are_answered_as_the_vectors_say_wherever_they_are_cut(vector: SocksVector) -> None:
    said = bytes.fromhex(vector["said"])
    for cut in range(len(said) + 1):
        server, outcomes, late = server_of(vector), list[Outcome](), b""
        for piece in (said[:cut], said[cut:]):
            if outcomes:
                late += piece
            elif (found := server.receive(piece)) is not None:
                outcomes.append(found)
        assert server.take_outgoing().hex() == vector["answered"]
        match outcomes:
            case [Asked(target, early)]:
                assert (target.label, (early + late).hex()) == (vector["target"], vector["early"])
            case [Refused(message)]:
                assert message == vector["refused"]
            case _:
                assert (vector["target"], vector["refused"]) == ("", "")


@given(
    cuts=st.lists(st.integers(0, 80), max_size=20),
    early=st.binary(max_size=20),
    is_protected=st.booleans(),
)
def test_cuts_change_nothing(cuts: list[int], early: bytes, is_protected: bool) -> None:
    credentials = CREDENTIALS if is_protected else None
    content = b"\x05\x02\x00\x02" + (shown(b"ada", b"enigma") if is_protected else b"")
    content += request("some.host.test", 443) + early
    server = Socks5Server(credentials=credentials)
    edges = [0, *sorted(cut for cut in cuts if cut < len(content)), len(content)]
    found: Outcome | None = None
    after = b""
    for start, end in pairwise(edges):
        if found is None:
            found = server.receive(content[start:end])
        else:
            after += content[start:end]
    assert isinstance(found, Asked)
    assert found.target == Target(443, "some.host.test")
    assert found.early + after == early


@given(pieces=st.lists(st.binary(max_size=600), max_size=6), is_protected=st.booleans())
def test_whatever_comes_is_judged_and_bounded(pieces: list[bytes], is_protected: bool) -> None:
    server = Socks5Server(credentials=CREDENTIALS if is_protected else None)
    outcomes = [found for piece in pieces if (found := server.receive(piece)) is not None]
    assert len(outcomes) <= 1
    assert len(server.take_outgoing()) <= 2 + 2 + 10


@given(rest=st.binary(max_size=300))
def test_whatever_follows_a_greeting_is_judged(rest: bytes) -> None:
    found = outcome_of(GREETING + b"\x05" + rest)
    if isinstance(found, Asked):
        assert 1 <= found.target.port <= 65535
