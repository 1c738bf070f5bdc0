"""The buffer of a connection: nothing is lost as it grows, moves and shrinks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead_tunnel.receive_buffer import ReceiveBuffer

MOST = 100_000


def put(buffer: ReceiveBuffer, content: bytes) -> int:
    """Read as much of `content` as there is room for, and return how much that is."""
    room = buffer.room()
    count = min(len(room), len(content))
    room[:count] = content[:count]
    buffer.filled(count)
    return count


@given(
    st.lists(
        st.tuples(st.integers(1, MOST), st.integers(0, MOST), st.integers(0, MOST)), max_size=20
    )
)
def test_bytes_come_out_as_they_went_in(steps: list[tuple[int, int, int]]) -> None:
    buffer = ReceiveBuffer(most=MOST)
    kept = b""
    for number, (size, needed, taken) in enumerate(steps):
        content = number.to_bytes(4, "big") * (size // 4 + 1)
        kept += content[: put(buffer, content)]
        assert bytes(buffer.content) == kept
        taken = min(taken, len(kept))
        buffer.take(taken)
        kept = kept[taken:]
        buffer.need(needed)
        room = len(buffer.room())
        assert room > 0 or len(kept) == MOST
        assert len(kept) + room >= min(needed, MOST)


def test_it_grows_while_reads_fill_it_and_is_small_again_when_little_comes() -> None:
    buffer = ReceiveBuffer(most=MOST)
    sizes = []
    for _ in range(4):
        sizes.append(len(buffer.room()))
        buffer.take(put(buffer, bytes(sizes[-1])))
    assert sizes == [4096, 32768, MOST, MOST]
    buffer.take(put(buffer, bytes(100)))
    assert len(buffer.room()) == 4096


def test_it_is_full_only_when_it_has_all_that_it_may() -> None:
    buffer = ReceiveBuffer(most=MOST)
    count = 0
    while len(room := buffer.room()):
        count += put(buffer, bytes(len(room)))
    assert count == len(buffer.content) == MOST
