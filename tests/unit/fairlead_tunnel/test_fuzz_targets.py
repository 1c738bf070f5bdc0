"""What `make fuzz` feeds, with any bytes at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS
from tests.unit.fairlead_tunnel.tunnel_vectors import VECTORS


@pytest.mark.parametrize("name", TARGETS)
@given(content=st.binary(max_size=600))
def test_no_bytes_raise_what_is_not_named(name: str, content: bytes) -> None:
    TARGETS[name](content)


@given(data=st.data())
def test_changed_batches_end_a_tunnel_or_are_taken(data: st.DataObject) -> None:
    batch = bytearray.fromhex("00000000000000010000000000000001") + b"".join(
        data.draw(
            st.lists(
                st.sampled_from([bytes.fromhex(each["bytes"]) for each in VECTORS["frames"]]),
                max_size=4,
            )
        )
    )
    for _ in range(data.draw(st.integers(0, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    for side in (b"\x00", b"\xff"):
        TARGETS["tunnel"](side + len(batch).to_bytes(2) + batch)
    TARGETS["frames"](bytes(batch))
