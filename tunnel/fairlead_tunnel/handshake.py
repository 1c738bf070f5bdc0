"""How a carrier connection of a tunnel gets its keys: Noise NKpsk0, with early data both ways.

    hello   = "FLT" ‖ version u8 = 1 ‖ suite u8 ‖ kind u8 ‖ n u16 ‖ token, n bytes ‖ message 1
    answer  = 00 ‖ message 2   or   01 ‖ reason ‖ message, as in `frames`: refused
    message = n u16 ‖ n bytes: a message of Noise_NKpsk0_25519_AESGCM_SHA256 (suite 1) or
              Noise_NKpsk0_25519_ChaChaPoly_SHA256 (suite 2); noiseprotocol.org, revision 34

The client knows the gateway's public key, which came with its ticket. The prologue is the hello up
to message 1.

    kind  token                          psk
    1     the ticket                     the one in the ticket
    2     tunnel, 16 bytes ‖ attach u32  HKDF-SHA256(secret, no salt, "fairlead attach 1" ‖ attach)

The payload of message 1 is the client's first batch, so that what it opens travels with the hello.
The payload of message 2 is, for kind 1, a secret of 32 bytes that later carriers of the tunnel
attach with, and then for both kinds the gateway's first batch. Either batch may be empty.

A ticket is good once and attaches carrier 1; `attach` counts up from there: the gateway takes none
that is not above all before.
So a hello that somebody sends again opens nothing. A refusal is not authenticated: whoever can
forge one could as well cut the line. Message 1 has no forward secrecy: who learns the gateway's key
and the psk later can read it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from noise.connection import Keypair, NoiseConnection
from noise.exceptions import NoiseValueError

from fairlead_tunnel.frames import FrameInvalid, decode_sentence, encode_sentence
from fairlead_tunnel.records import Suite
from fairlead_tunnel.ticket import MAX_TICKET_BYTES

MAX_EARLY_BYTES: Final = 32 * 1024
SECRET_BYTES: Final = 32
TUNNEL_ID_BYTES: Final = 16
MAX_HELLO_BYTES: Final = 36 * 1024

_MAGIC = b"FLT\x01"
_HEAD = struct.Struct(">4sBBH")
_LENGTH = struct.Struct(">H")
_ATTACH = struct.Struct(">16sI")
_NAMES = {
    Suite.AES_256_GCM: b"Noise_NKpsk0_25519_AESGCM_SHA256",
    Suite.CHACHA20_POLY1305: b"Noise_NKpsk0_25519_ChaChaPoly_SHA256",
}


class Kind(IntEnum):
    """What lets the client attach."""

    TICKET = 1
    RESUME = 2


class HandshakeInvalid(ValueError):
    """Bytes that are no hello or answer, or of somebody without the keys."""


class AttachRefused(RuntimeError):
    """The gateway says why it does not take this carrier; `reason` is lower snake case."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one carrier connection, 32 bytes each, as this side uses them."""

    suite: Suite
    send: bytes
    receive: bytes


@dataclass(frozen=True, slots=True)
class Hello:
    """A client's hello; nothing of it is authenticated until `GatewayHandshake` took it."""

    suite: Suite
    kind: Kind
    token: bytes
    prologue: bytes
    message: bytes


def attach_psk(secret: bytes, attach: int) -> bytes:
    """Return the psk of a tunnel's carrier number `attach`, 2 to 2^32 - 1."""
    label = b"fairlead attach 1" + attach.to_bytes(4, "big")
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=label).derive(secret)


def attach_token(tunnel_id: bytes, attach: int) -> bytes:
    """Return the token of kind RESUME; a tunnel's id has 16 bytes."""
    return _ATTACH.pack(tunnel_id, attach)


def read_attach_token(token: bytes) -> tuple[bytes, int]:
    """Return the tunnel's id and the number that a token of kind RESUME names."""
    if len(token) != _ATTACH.size:
        raise HandshakeInvalid("a token has no length that a token has")
    tunnel_id, attach = _ATTACH.unpack(token)
    return tunnel_id, attach


def read_hello(received: bytes) -> tuple[Hello, int] | None:
    """Return the hello at the start of `received` and how long it is; None: more has to come.

    HandshakeInvalid: it does not begin with a hello.
    """
    if not received.startswith(_MAGIC[: len(received)]):
        raise HandshakeInvalid("this is no hello of fairlead.tunnel.v1")
    if len(received) < _HEAD.size:
        return None
    _, suite, kind, length = _HEAD.unpack_from(received)
    if suite not in _NAMES or kind not in Kind.__members__.values() or length > MAX_TICKET_BYTES:
        raise HandshakeInvalid("a hello asks for what is not known here")
    start = _HEAD.size + length
    found = _read_message(received, start)
    if found is None:
        return None
    message, end = found
    if end > MAX_HELLO_BYTES:
        raise HandshakeInvalid("a hello is too long")
    token = received[_HEAD.size : start]
    return Hello(Suite(suite), Kind(kind), token, received[:start], message), end


def refusal(reason: str, message: str) -> bytes:
    """Return the answer that refuses a carrier."""
    return b"\x01" + encode_sentence(reason, message)


class ClientHandshake:
    """The client's side of one carrier connection."""

    def __init__(
        self, *, suite: Suite, kind: Kind, token: bytes, psk: bytes, gateway_key: bytes
    ) -> None:
        self._suite = suite
        self._kind = kind
        self._prologue = _HEAD.pack(_MAGIC, suite, kind, len(token)) + token
        self._noise = _noise(suite, psk, self._prologue)
        self._noise.set_as_initiator()
        self._noise.set_keypair_from_public_bytes(Keypair.REMOTE_STATIC, gateway_key)
        self._noise.start_handshake()

    def hello(self, early: bytes = b"") -> bytes:
        """Return the hello, once, with the first batch in it, at most 32 KiB."""
        if len(early) > MAX_EARLY_BYTES:
            raise ValueError("early data has at most 32 KiB")
        return self._prologue + _written(self._noise, early)

    def finish(self, received: bytes) -> tuple[Keys, bytes, bytes, int] | None:
        """Return keys, secret (kind TICKET, else empty), first batch and the answer's length.

        None: more has to come. AttachRefused, HandshakeInvalid.
        """
        if not received:
            return None
        if received[0] == 1:
            raise_refusal(received)
            return None
        found = _read_message(received, 1)
        if received[0] != 0:
            raise HandshakeInvalid("this is no answer of fairlead.tunnel.v1")
        if found is None:
            return None
        message, end = found
        payload = _read(self._noise, message)
        length = SECRET_BYTES if self._kind is Kind.TICKET else 0
        if len(payload) < length:
            raise HandshakeInvalid("an answer is without its secret")
        return _keys(self._noise, self._suite), payload[:length], payload[length:], end


class GatewayHandshake:
    """The gateway's side of one carrier connection, once it knows the psk that the token names."""

    def __init__(self, hello: Hello, *, psk: bytes, private_key: bytes) -> None:
        self._hello = hello
        self._noise = _noise(hello.suite, psk, hello.prologue)
        self._noise.set_as_responder()
        self._noise.set_keypair_from_private_bytes(Keypair.STATIC, private_key)
        self._noise.start_handshake()

    def early(self) -> bytes:
        """Return the client's first batch; HandshakeInvalid unless it has ticket and key."""
        return _read(self._noise, self._hello.message)

    def answer(self, *, secret: bytes = b"", batch: bytes = b"") -> tuple[bytes, Keys]:
        """Return the answer and the keys; `secret` has 32 bytes for kind TICKET, else none."""
        if len(secret) != (SECRET_BYTES if self._hello.kind is Kind.TICKET else 0):
            raise ValueError("a secret of 32 bytes goes with a ticket, and only with it")
        if len(batch) > MAX_EARLY_BYTES:
            raise ValueError("early data has at most 32 KiB")
        written = _written(self._noise, secret + batch)
        return b"\x00" + written, _keys(self._noise, self._hello.suite)


def _noise(suite: Suite, psk: bytes, prologue: bytes) -> NoiseConnection:
    noise = NoiseConnection.from_name(_NAMES[suite])
    noise.set_psks(psk)
    noise.set_prologue(prologue)
    return noise


def _written(noise: NoiseConnection, payload: bytes) -> bytes:
    message = bytes(noise.write_message(payload))
    return _LENGTH.pack(len(message)) + message


def _read(noise: NoiseConnection, message: bytes) -> bytes:
    try:
        return bytes(noise.read_message(message))
    except (InvalidTag, ValueError, NoiseValueError) as error:
        raise HandshakeInvalid("a handshake is of somebody without the keys") from error


def _read_message(received: bytes, start: int) -> tuple[bytes, int] | None:
    if len(received) < start + _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(received, start)
    end = start + _LENGTH.size + length
    return (received[start + _LENGTH.size : end], end) if len(received) >= end else None


def raise_refusal(received: bytes) -> None:
    """Raise what a refusal says; nothing when more of it has to come."""
    try:
        reason, message, _ = decode_sentence(memoryview(received), 1)
    except (IndexError, struct.error, FrameInvalid):
        if len(received) > MAX_HELLO_BYTES:
            raise HandshakeInvalid("a refusal is too long") from None
        return
    except UnicodeDecodeError as error:
        raise HandshakeInvalid("a refusal is no text") from error
    raise AttachRefused(reason, message)


def _keys(noise: NoiseConnection, suite: Suite) -> Keys:
    state = noise.noise_protocol
    send, receive = bytes(state.cipher_state_encrypt.k), bytes(state.cipher_state_decrypt.k)
    return Keys(suite, send, receive)
