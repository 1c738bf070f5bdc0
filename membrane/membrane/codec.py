"""The closed, data-only codec of the membrane: messages whose last item holds the user's values, to
and from MessagePack.

Nothing that comes in names code: what is not one of the known types is a handle, which the handle
tables resolve.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec

from membrane import graph
from membrane.errors import MembraneError, ProtocolError, UnsupportedUse
from membrane.extensions import (
    BYTES_KIND,
    LARGE,
    NOT_PLAIN,
    PLAIN,
    PLAIN_OR_BYTES,
    encode_plain,
    is_flat,
)
from membrane.lowering import Lowering, NotATree
from membrane.policies import Policies, Policy
from membrane.reading import Reader
from membrane.regions import Lane, LaneRegions

BY_RULES: Final = 0
BY_VALUE: Final = 1
BY_REFERENCE: Final = 2
VIEWS: Final = 4
"""What `policy` of `encode` is made of."""

_FEW: Final = 64

_CALLS: Final[tuple[Policy | None, ...]] = (None, "value", "reference")

_FAULTS: Final = (
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    BufferError,
    MemoryError,
    RecursionError,
    struct.error,
)
"""What the parts of the reader raise on what no codec has written."""

_READERS: Final = 16
"""Readers kept for the next message: making one costs as much as reading a small message."""


class Codec:
    """Write and read the messages of one side of a session; usable from any thread.

    `export` gives the plain payload of a handle for whatever does not go by value, `resolve` gives
    the object for a payload that came in, and `retract` takes back the exports of a message that
    could not be encoded. With `numeric` false numpy arrays go by handle, and none is read.
    """

    def __init__(
        self,
        *,
        export: Callable[[object], list[object]],
        resolve: Callable[[list[object]], object],
        retract: Callable[[list[list[object]]], None] | None = None,
        policies: Policies | None = None,
        numeric: bool = True,
        is_record: Callable[[type, str | None], bool] = lambda _, __: False,
    ) -> None:
        self.policies = policies or Policies()
        self._is_by_value = self.policies.default == "value" and not self.policies.rules
        self._export = export
        self._is_record = is_record
        self._resolve = resolve
        self._retract = retract
        self._numeric = numeric
        self._readers: deque[Reader] = deque(maxlen=_READERS)

    def make_regions(self, lane: Lane) -> LaneRegions:
        """Give the shared memory of a lane."""
        return LaneRegions(lane=lane)

    def encode(
        self,
        message: Sequence[Any],
        *,
        policy: int = BY_RULES,
        regions: LaneRegions | None = None,
    ) -> bytes:
        """Write a message: plain items, and last the list or tuple of the values.

        Large buffers among the values go to `regions`, where there are any. Raise UnsupportedUse
        where something cannot be written, and what `export` raises; then nothing has been exported
        or placed.
        """
        values = message[-1]
        if (
            PLAIN.issuperset(map(type, values)) if len(values) < _FEW else is_flat(values)
        ) or self._is_simple(values, policy):
            try:
                return encode_plain(message)
            except NOT_PLAIN:
                pass
        if regions is not None and PLAIN_OR_BYTES.issuperset(map(type, values)):
            try:
                return self._encode_atoms(message, policy, regions)
            except NOT_PLAIN:
                pass
        return self._encode_walked(message, policy, regions)

    def _encode_atoms(self, message: Sequence[Any], policy: int, regions: LaneRegions) -> bytes:
        """Write a message whose values are atoms, some of them long bytes: no policy concerns
        these, and there is nothing to walk through.
        """
        lend = bool(policy & VIEWS)
        try:
            lowered = [
                regions.placed(value, BYTES_KIND, lend=lend)
                if type(value) is bytes and len(value) >= LARGE
                else value
                for value in message[-1]
            ]
            encoded = encode_plain([*message[:-1], lowered])
        except BaseException:
            regions.unsent()
            raise
        regions.sent(lend=lend)
        return encoded

    def _is_simple(self, values: Sequence[object], policy: int) -> bool:
        """Say whether MessagePack may write the values as they are: atoms and flat containers, no
        container twice."""
        if policy & 3 == BY_REFERENCE or (policy & 3 == BY_RULES and not self._is_by_value):
            return False
        met: set[int] = set()
        containers = 0
        for value in values:
            kind = type(value)
            if kind in PLAIN or (kind is bytes and len(value) < LARGE):  # type: ignore[arg-type]
                continue
            if kind is dict:
                keyed = cast("dict[object, object]", value)
                is_plain = (
                    len(keyed) < _FEW
                    and PLAIN.issuperset(map(type, keyed))
                    and PLAIN.issuperset(map(type, keyed.values()))
                )
                if not is_plain and not (is_flat(keyed) and is_flat(keyed.values())):
                    return False
            elif kind is not list or not is_flat(cast("list[object]", value)):
                return False
            met.add(id(value))
            containers += 1
        return len(met) == containers

    def _encode_walked(
        self, message: Sequence[Any], policy: int, regions: LaneRegions | None
    ) -> bytes:
        strict = as_graph = False
        while True:
            lowering = Lowering(
                export=self._export,
                policies=self.policies,
                call=_CALLS[policy & 3],
                regions=regions,
                lend=bool(policy & VIEWS),
                arrays=self._numeric,
                strict=strict,
                is_record=self._is_record,
            )
            lowering.pack_graph = graph.pack if as_graph else None
            try:
                values = message[-1]
                lowered = graph.pack(values, lowering) if as_graph else lowering.values(values)
                encoded = encode_plain([*message[:-1], lowered])
            except BaseException as error:
                self._take_back(lowering, regions)
                if isinstance(error, NotATree) and not as_graph:
                    as_graph = True
                elif isinstance(error, NOT_PLAIN) and not strict:
                    strict = True
                else:
                    _check_header(message, error)
                    raise
                continue
            if regions is not None:
                regions.sent(lend=bool(policy & VIEWS))
            return encoded

    def _take_back(self, lowering: Lowering, regions: LaneRegions | None) -> None:
        if regions is not None:
            regions.unsent()
        if lowering.exported and self._retract is not None:
            self._retract(lowering.exported)

    def decode(
        self,
        buffer: bytes | bytearray | memoryview,
        regions: LaneRegions | None = None,
        views: bool = False,
    ) -> list[Any]:
        """Read a message; what it holds is copied out of `buffer` and of shared memory.

        With `views` buffers in shared memory come as read-only views of it, for messages that were
        encoded so by a trusted side. Raise ProtocolError for whatever `encode` does not write.
        """
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = Reader(resolve=self._resolve, arrays=self._numeric)
        reader.regions = regions
        reader.views = views
        try:
            message: list[Any] = reader.decode(buffer)
            if not message or type(message[-1]) is not list:
                raise ProtocolError("a message ends in the list of its values")
            if reader.found_lists:
                if any(message[-1] is found for found in reader.found_lists):
                    raise ProtocolError("a message ends in a handle instead of its values")
                reader.found_lists.clear()
        except MembraneError:
            raise
        except _FAULTS as error:
            raise ProtocolError(f"a message cannot be read: {error}") from error
        if regions is not None:
            regions.received(lend=reader.met_lent)
            reader.regions = None
            reader.met_lent = False
        # A reader that failed is not used again, so its depth is always 0 here.
        self._readers.append(reader)
        return message


def _check_header(message: Sequence[Any], error: BaseException) -> None:
    """Raise UnsupportedUse where it was no value that could not be written, but a name before
    them."""
    if isinstance(error, NOT_PLAIN):
        try:
            encode_plain(list(message[:-1]))
        except NOT_PLAIN as fault:
            raise UnsupportedUse(f"use a name that can be written as UTF-8: {fault}") from fault
