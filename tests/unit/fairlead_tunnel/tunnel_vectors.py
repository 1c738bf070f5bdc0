"""The vectors of the tunnel's bytes and of SOCKS5, which other implementations use too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict


class FrameVector(TypedDict):
    """A frame and its bytes."""

    name: str
    frame: dict[str, object]
    bytes: str


class BatchVector(TypedDict):
    """Bytes that are no batch."""

    why: str
    bytes: str


class RecordVector(TypedDict):
    """A batch and what it is sealed to."""

    suite: str
    key: str
    number: int
    batch: str
    sealed: str


class HandshakeVector(TypedDict):
    """Both messages of a handshake, and the keys that it makes."""

    suite: str
    kind: str
    token: str
    psk: str
    gateway_private: str
    client_ephemeral: str
    gateway_ephemeral: str
    early: str
    secret: str
    reply: str
    hello: str
    answer: str
    client_key: str
    gateway_key: str


class PollVector(TypedDict):
    """A body of poll `poll`, and what is in it; None: it was cut."""

    name: str
    suite: str
    key: str
    poll: int
    batches: list[str] | None
    bytes: str


class Vectors(TypedDict):
    """`tests/vectors/tunnel.json`; bytes are hexadecimal."""

    frames: list[FrameVector]
    no_batches: list[BatchVector]
    records: list[RecordVector]
    handshakes: list[HandshakeVector]
    polls: list[PollVector]


class SocksVector(TypedDict):
    """What a client of SOCKS5 says and what becomes of it; bytes are hexadecimal."""

    name: str
    credentials: list[str] | None
    said: str
    answered: str
    target: str
    early: str
    refused: str


def _read(name: str) -> str:
    return (Path(__file__).parents[2] / "vectors" / name).read_text(encoding="utf-8")


VECTORS: Vectors = json.loads(_read("tunnel.json"))
SOCKS_VECTORS: list[SocksVector] = json.loads(_read("socks5.json"))["servers"]
