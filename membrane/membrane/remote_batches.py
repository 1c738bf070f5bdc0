"""The reply to a batch: results in a row, errors beside them.

`extra` is None when all items ran well: `values` are the results. Otherwise it is `[ran, [[index,
payload, count], ...]]`: `values` are the results of the `ran` items, None where one failed, then
`count` values for each error's payload in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, cast

from membrane.errors import ProtocolError
from membrane.outcomes import Outcomes

if TYPE_CHECKING:
    from membrane.bonds import LinkBond
    from membrane.forwarding import Bond

MOST_ITEMS = 1_000_000


def run_batch(
    bond: LinkBond, function: Callable[..., object], extra: object, values: Sequence[object]
) -> tuple[object, Sequence[object]]:
    """Serve a batch: call `function` for each item; the items are laid out as `methods.batch` does
    it.
    """
    count, stop, shape = checked_shape(extra, values)
    results: list[object] = []
    errors: list[tuple[int, Exception]] = []
    append = results.append
    items: Iterator[object]
    if isinstance(shape, list):
        function, items = partial(_call, function), iter(_calls(shape, values))
    elif shape == 0:
        items = repeat(None, count)
    elif shape == 1:
        items = iter(values)
    else:
        items = zip(*[iter(values)] * shape, strict=True)
    while len(results) < count:
        try:
            if shape == 0:
                for _ in items:
                    append(function())
            elif shape == 1:
                for value in items:
                    append(function(value))
            else:
                for args in cast("Iterator[tuple[object, ...]]", items):
                    append(function(*args))
        except Exception as error:
            errors.append((len(results), error))
            append(None)
            if stop:
                break
    return reply_of(bond, results, errors)


def reply_of(
    bond: LinkBond, results: list[object], errors: list[tuple[int, Exception]]
) -> tuple[object, Sequence[object]]:
    """Lay out results and errors as they travel."""
    if not errors:
        return None, results
    ran = len(results)
    packed = []
    for index, error in errors:
        payload, values = bond.pack_error(error)
        packed.append([index, payload, len(values)])
        results.extend(values)
    return [ran, packed], results


def outcomes_of(bond: Bond, count: int, extra: object, values: list[object]) -> Outcomes:
    """Read the reply to a batch of `count` items; raise ProtocolError for one that does not fit."""
    if extra is None:
        if len(values) != count:
            raise ProtocolError(f"a batch of {count} was answered by {len(values)} results")
        return Outcomes(results=values)
    match extra:
        case [int() as ran, list() as packed] if 0 <= ran <= min(count, len(values)):
            errors: dict[int, BaseException] = {}
            place = ran
            for item in packed:
                match item:
                    case [int() as index, payload, int() as size] if (
                        0 <= index < ran and 0 <= size <= len(values) - place
                    ):
                        error = cast("LinkBond", bond).unpack_error(
                            payload, values[place : place + size]
                        )
                        errors[index] = error
                        place += size
                    case _:
                        raise ProtocolError("an error of a batch does not fit")
            return Outcomes(results=values[:ran], errors=errors, count=count)
    raise ProtocolError("the reply to a batch does not fit it")


def checked_shape(extra: object, values: Sequence[object]) -> tuple[int, bool, int | list[object]]:
    """Check the layout of a batch that came in; raise ProtocolError for one that does not fit its
    values.
    """
    match extra:
        case [int() as count, int() as stop, int() as each] if 0 < count <= MOST_ITEMS:
            if each >= 0 and count * each == len(values):
                return count, bool(stop), each
        case [int() as count, int() as stop, list() as each] if count == len(each):
            size = 0
            for item in each:
                match item:
                    case [int() as positional, None] if positional >= 0:
                        size += positional
                    case [int() as positional, list() as names] if positional >= 0 and all(
                        type(name) is str for name in names
                    ):
                        size += positional + len(names)
                    case _:
                        raise ProtocolError("an item of a batch is a count and names")
            if size == len(values):
                return count, bool(stop), each
    raise ProtocolError("the layout of a batch does not fit its values")


def _call(
    function: Callable[..., object], args: Sequence[object], kwargs: dict[str, object]
) -> object:
    return function(*args, **kwargs)


def _calls(
    shape: list[object], values: Sequence[object]
) -> Iterator[tuple[Sequence[object], dict[str, object]]]:
    place = 0
    for item in cast("list[tuple[int, list[str] | None]]", shape):
        positional, names = item
        args = values[place : place + positional]
        place += positional
        kwargs: dict[str, object] = {}
        if names:
            kwargs = dict(zip(names, values[place : place + len(names)], strict=True))
            place += len(names)
        yield args, kwargs
