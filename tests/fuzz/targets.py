"""Readers of a tunnel's bytes: each takes any bytes, and raises nothing but what it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from fairlead_tunnel.frames import FrameInvalid, decode, encode
from fairlead_tunnel.handshake import HandshakeInvalid, read_hello
from fairlead_tunnel.poll_wire import PollCut, PollInvalid, open_request, read_head
from fairlead_tunnel.records import Opener, RecordInvalid, Suite
from fairlead_tunnel.tunnel import Side, Tunnel
from tests.fuzz.proxies import CREDENTIALS, check_same

_MOST_BATCHES: Final = 64


def read_frames(content: bytes) -> None:
    """Read a batch; what can be read is written the same again."""
    with suppress(FrameInvalid):
        batch_id, lowest, frames = decode(content)
        said = content[:16] + b"".join(encode(each) for each in frames)
        assert decode(said) == (batch_id, lowest, frames)


def feed_tunnel(content: bytes) -> None:
    """Have either side of a tunnel, with a channel in it, take batches; it goes on or is over."""
    side = Side.GATEWAY if content[:1] > b"\x7f" else Side.CLIENT
    tunnel = Tunnel(side=side)
    if side is Side.CLIENT:
        tunnel.write(tunnel.open("db:5432"), b"hello")
    for number, batch in enumerate(_pieces(content[1:])):
        tunnel.receive(batch, float(number))
        for _ in range(_MOST_BATCHES):
            if tunnel.take_batch(carrier=number + 1, most=4096, now=float(number)) is None:
                break
        tunnel.carrier_lost(number)


def greet(content: bytes) -> None:
    """Read the hello that a connection begins with."""
    with suppress(HandshakeInvalid):
        read_hello(content)


def open_records(content: bytes) -> None:
    """Open a record in order, and the records of a poll."""
    opener = Opener(suite=Suite.AES_256_GCM, key=bytes(32))
    with suppress(RecordInvalid):
        opener.open(opener.next, content)
    with suppress(PollInvalid, PollCut, RecordInvalid):
        read_head(content)
        open_request(opener, content)


def ask_proxy(content: bytes) -> None:
    """Serve a client of SOCKS5 that says these pieces, in Python and natively: the same answers."""
    pieces = [*_pieces(content[1:])]
    check_same(pieces, CREDENTIALS if content[:1] > b"\x7f" else None)


def _pieces(content: bytes) -> Iterator[bytes]:
    """Split bytes at the lengths that are in them, two bytes before each piece."""
    for _ in range(_MOST_BATCHES):
        if len(content) < 2:
            return
        end = 2 + int.from_bytes(content[:2], "big")
        yield content[2:end]
        content = content[end:]


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    "frames": read_frames,
    "tunnel": feed_tunnel,
    "hello": greet,
    "records": open_records,
    "socks": ask_proxy,
}
