"""What is typed: the escapes in it, and what of it has to be sent (again)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_sdk.cli.escapes import Escape, Escapes
from fairlead_sdk.typed_input import TypedInput


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        (b"ls\r", [b"ls\r"]),
        (b"~.", [Escape.LEAVE]),
        (b"ls\r~.", [b"ls\r", Escape.LEAVE]),
        (b"a~.", [b"a~."]),
        (b"~~.", [b"~."]),
        (b"~x", [b"~x"]),
        (b"~", []),
        (b"\n~?ok", [b"\n", Escape.HELP, b"ok"]),
        (b"~\x1a~.", [Escape.STOP, Escape.LEAVE]),
        (b"~\r~.", [b"~\r", Escape.LEAVE]),
    ],
)
def test_escapes_count_at_the_start_of_a_line(typed: bytes, taken: list[bytes | Escape]) -> None:
    assert Escapes().take(typed) == taken
    byte_by_byte = Escapes()
    found: list[bytes | Escape] = []
    for byte in typed:
        for piece in byte_by_byte.take(bytes([byte])):
            if found and isinstance(piece, bytes) and isinstance(found[-1], bytes):
                piece = found.pop() + piece  # type: ignore[operator]
            found.append(piece)
    assert found == taken


class OtherSide:
    """Takes input by its offset, as a worker does."""

    def __init__(self) -> None:
        self.taken = b""

    def take(self, offset: int, content: bytes) -> None:
        assert offset <= len(self.taken), "bytes are missing"
        self.taken += content[len(self.taken) - offset :]


@given(
    st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=10),
            st.sampled_from(["deliver", "lose", "accept", "reconnect"]),
        )
    )
)
def test_nothing_is_lost_or_doubled_however_the_connection_breaks(
    steps: list[bytes | str],
) -> None:
    async def scenario() -> None:
        waiting, other, typed = TypedInput(), OtherSide(), b""
        waiting.take_up(0, resumed=False)
        is_connected = True
        for step in steps:
            if isinstance(step, bytes):
                await waiting.add(step)
                typed += step
            elif step == "accept":
                waiting.accept(len(other.taken))
            elif step == "reconnect":
                assert waiting.take_up(len(other.taken), resumed=True) == 0
                is_connected = True
            elif is_connected and (piece := waiting.next()) is not None:
                if step == "deliver":
                    other.take(*piece)
                else:
                    is_connected = False
        waiting.take_up(len(other.taken), resumed=True)
        while (piece := waiting.next()) is not None:
            other.take(*piece)
        waiting.accept(len(other.taken))
        assert other.taken == typed
        assert waiting.is_taken

    asyncio.run(scenario())


def test_what_was_sent_is_dropped_when_somebody_else_has_typed() -> None:
    async def scenario() -> None:
        waiting = TypedInput()
        await waiting.add(b"sent")
        assert waiting.next() == (0, b"sent")
        await waiting.add(b"later")
        assert waiting.take_up(9, resumed=False) == 4
        assert waiting.next() == (9, b"later")

    asyncio.run(scenario())


def test_too_much_waits_until_it_is_taken_or_over() -> None:
    async def scenario() -> None:
        waiting = TypedInput()
        adding = asyncio.create_task(waiting.add(b"x" * 600_000))
        await asyncio.sleep(0)
        assert not adding.done()
        while (piece := waiting.next()) is not None:
            waiting.accept(piece[0] + len(piece[1]))
            await asyncio.sleep(0)
        await adding
        stuck = asyncio.create_task(waiting.add(b"x" * 600_000))
        await asyncio.sleep(0)
        waiting.close()
        await stuck
        assert waiting.is_taken

    asyncio.run(scenario())
