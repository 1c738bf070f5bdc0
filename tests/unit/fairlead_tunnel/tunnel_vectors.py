"""The vectors of the tunnel's bytes, which other implementations use too."""

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


VECTORS: Vectors = json.loads(
    (Path(__file__).parents[2] / "vectors/tunnel.json").read_text(encoding="utf-8")
)
