"""The vectors of the tunnel's bytes, of SOCKS5 and of WebSockets, which others use too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NotRequired, TypeAlias, TypedDict


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


Repeated: TypeAlias = list[tuple[str, int]]
"""Bytes: hexadecimal, and how often they come."""


class SocketReading(TypedDict):
    """What a WebSocket's peer has sent, what is found in it, and the code that refuses the rest."""

    name: str
    of_client: bool
    most: int
    bytes: Repeated
    found: list[dict[str, Repeated | int]]
    refused: NotRequired[int]


class SocketWriting(TypedDict):
    """A frame that is written, by a client where there is a mask."""

    kind: str
    mask: str | None
    content: Repeated
    frame: Repeated


class SocketVectors(TypedDict):
    """`tests/vectors/websocket.json`."""

    readers: list[SocketReading]
    writers: list[SocketWriting]


def _read(name: str) -> str:
    return (Path(__file__).parents[2] / "vectors" / name).read_text(encoding="utf-8")


VECTORS: Vectors = json.loads(_read("tunnel.json"))
SOCKS_VECTORS: list[SocksVector] = json.loads(_read("socks5.json"))["servers"]
FRAME_VECTORS: SocketVectors = json.loads(_read("websocket.json"))
