"""A batch is laid out flat, and what is laid out is called as it was meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from membrane.bonds import LinkBond
from membrane.calls import CallOptions
from membrane.forwarding import Bond
from membrane.methods import batch
from membrane.outcomes import Outcomes
from membrane.remote_batches import run_batch


def told(*args: object, **kwargs: object) -> str:
    return f"{args} {kwargs}"


class Loop:
    """A bond whose other side is right here."""

    def __init__(self) -> None:
        self.asked = 0

    def request(
        self,
        op: int,
        target: int,
        name: str,
        extra: object,
        values: Sequence[object],
        options: CallOptions | None = None,
    ) -> tuple[object, list[object]]:
        self.asked += 1
        extra, results = run_batch(cast("LinkBond", self), told, extra, list(values))
        return extra, list(results)


def batched(calls: list[object]) -> Outcomes:
    return batch(cast("Bond", Loop()), 1, "told", calls, "stop")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [((), {})],
        [((), {})] * 3,
        [([], {}), ((), {})],
        [((1,), {}), ([2], {})],
        [((1, "a", None), {})] * 4,
        [((1,), {}), ((), {}), ((1, 2), {})],
        [((), {"key": 1}), ((), {})],
        [((1, 2), {"one": 1, "two": 2}), ((3,), {"two": 2})],
    ],
)
def test_each_item_is_called_with_its_own_arguments(
    calls: list[tuple[Sequence[object], dict[str, object]]],
) -> None:
    expected = [told(*args, **kwargs) for args, kwargs in calls]
    assert batched(list(calls)).values() == expected


@pytest.mark.parametrize(
    "calls",
    [
        [1],
        [((),)],
        [((), {}, 3)],
        [("ab", {})],
        [(b"", {})],
        [({}, {})],
        [((), None)],
        [((1,), [])],
        [((), {}), ((1,), "x")],
        [((1,), {}), ({1}, {})],
        [((), {1: 2})],
    ],
)
def test_what_is_no_pair_is_refused_before_anything_travels(calls: list[object]) -> None:
    bond = Loop()
    with pytest.raises(TypeError):
        batch(cast("Bond", bond), 1, "told", calls, "stop")  # type: ignore[arg-type]
    assert bond.asked == 0
