"""Frames of WebSockets by wsproto, and where they end, as tests/vectors/websocket.json has them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from fairlead_tunnel.frame_cutter import FrameCutter
from tests.unit.fairlead_tunnel.tunnel_vectors import (
    FRAME_VECTORS,
    Repeated,
    SocketReading,
    SocketWriting,
)

UNSUPPORTED = 1003
TOO_BIG = 1009
NAMES = [each["name"] for each in FRAME_VECTORS["readers"]]


def content_of(pairs: Repeated) -> bytes:
    return b"".join(bytes.fromhex(text) * count for text, count in pairs)


def expected(vector: SocketReading) -> tuple[list[object], int | None]:
    found: list[object] = []
    for each in vector["found"]:
        ((name, what),) = each.items()
        found.append((name, what if isinstance(what, int) else content_of(what)))
    return found, vector.get("refused")


def read(vector: SocketReading, pieces: Iterable[bytes]) -> tuple[list[object], int | None]:
    """Read as the carriers of the event loop do."""
    kind = ConnectionType.SERVER if vector["of_client"] else ConnectionType.CLIENT
    connection = Connection(kind)
    found: list[object] = []
    message = b""
    for piece in pieces:
        connection.receive_data(piece)
        for event in connection.events():
            match event:
                case TextMessage():
                    return found, UNSUPPORTED
                case BytesMessage():
                    message += event.data
                    if len(message) > vector["most"]:
                        return found, TOO_BIG
                    if event.message_finished:
                        found.append(("message", message))
                        message = b""
                case Ping():
                    found.append(("ping", bytes(event.payload)))
                case CloseConnection() if connection.state is ConnectionState.OPEN:
                    return found, int(event.code)  # not the peer's
                case CloseConnection():
                    found.append(("closed", int(event.code)))
    return found, None


@pytest.mark.parametrize("vector", FRAME_VECTORS["readers"], ids=NAMES)
def test_frames_are_read_or_refused_as_the_vectors_say(vector: SocketReading) -> None:
    content = content_of(vector["bytes"])
    found, refused = expected(vector)
    ways = [[content]]
    if len(content) < 1000:
        ways.append([bytes([each]) for each in content])
    for pieces in ways:
        seen = read(vector, pieces)
        assert seen[0] == found
        if refused == TOO_BIG:
            assert seen[1] in (TOO_BIG, None)  # the length alone does not end it here
        else:
            assert seen[1] == refused


@pytest.mark.parametrize("vector", FRAME_VECTORS["writers"])
def test_frames_that_are_written_say_what_they_should(vector: SocketWriting) -> None:
    kind = ConnectionType.SERVER if vector["mask"] else ConnectionType.CLIENT
    connection = Connection(kind)
    connection.receive_data(content_of(vector["frame"]))
    (event,) = connection.events()
    content = content_of(vector["content"])
    match event:
        case BytesMessage():
            assert (vector["kind"], bytes(event.data)) == ("binary", content)
            assert event.message_finished
        case CloseConnection():
            assert (vector["kind"], event.code.to_bytes(2, "big")) == ("close", content)
        case other:
            assert type(other).__name__.lower() == vector["kind"]
            assert bytes(getattr(other, "payload")) == content  # noqa: B009


def frames_of(vector: SocketReading) -> list[bytes]:
    """Return the frames of a vector that is read to its end."""
    cutter, content, frames = FrameCutter(), content_of(vector["bytes"]), []
    while content:
        end = cutter.end(content)
        frames.append(content[:end])
        content = content[end:]
    return frames


WHOLE = [each for each in FRAME_VECTORS["readers"] if "refused" not in each]


@pytest.mark.parametrize("vector", WHOLE, ids=[each["name"] for each in WHOLE])
def test_the_end_of_each_frame_is_found(vector: SocketReading) -> None:
    frames = frames_of(vector)
    kind = ConnectionType.SERVER if vector["of_client"] else ConnectionType.CLIENT
    connection = Connection(kind)
    for frame in frames:
        connection.receive_data(frame[:-1])
        for event in connection.events():
            assert isinstance(event, BytesMessage)
            assert not event.message_finished
        connection.receive_data(frame[-1:])
        assert len([*connection.events()]) <= 1
    assert read(vector, frames) == expected(vector)


@given(st.data())
def test_the_end_of_each_frame_is_found_however_it_is_cut(data: st.DataObject) -> None:
    vector = data.draw(st.sampled_from([each for each in WHOLE if len(str(each["bytes"])) < 400]))
    ends: set[int] = set()
    place = 0
    for frame in frames_of(vector):
        place += len(frame)
        ends.add(place)
    content = content_of(vector["bytes"])
    sizes = data.draw(st.lists(st.integers(1, 20), max_size=30))
    cutter, place, seen = FrameCutter(), 0, set()
    for size in [*sizes, len(content)]:
        limit = min(place + size, len(content))
        while place < limit:
            end = cutter.end(content[place:limit])
            assert 0 < end <= limit - place
            place += end
            if place < limit:
                seen.add(place)
    assert seen <= ends
