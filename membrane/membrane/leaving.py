"""Leaving a context manager of the other side: the error travels as errors do, its frames stay
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from membrane.awaiting import await_call
from membrane.errors import UnsupportedUse
from membrane.forwarding import Forwarding, bond_of, handle_of
from membrane.frames import OPERATE

if TYPE_CHECKING:
    from membrane.bonds import LinkBond


def leave(value: Forwarding, name: str, operands: tuple[object, ...]) -> object:
    """Forward `__exit__` or `__aexit__` with the error, without type and traceback."""
    bond = cast("LinkBond | None", bond_of(value))
    if bond is None:
        raise UnsupportedUse(f"{name} of a class of the other side works on its own objects only")
    error = operands[1] if len(operands) > 1 else None
    extra: object = None
    values: tuple[object, ...] = ()
    if isinstance(error, BaseException):
        extra, packed = bond.pack_error(error)
        values = tuple(packed)
    handle = handle_of(value)
    if name == "__aexit__":
        return await_call(value, bond, handle, name, extra, values)
    return bond.request(OPERATE, handle, name, extra, values)[1][0]
