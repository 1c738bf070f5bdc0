"""What a hostile child may do with the caller's objects: closed tables, by exact type."""

from __future__ import annotations

import types

from membrane.descriptions import is_dunder
from membrane.dunders import FORWARDED

_READING = ["len", "getitem", "contains", "iter", "reversed", "eq", "ne"]
_ORDERED = ["lt", "le", "gt", "ge"]
_SETS = ["and", "or", "xor", "sub", "rand", "ror", "rxor", "rsub"]


def _dunders(*words: str) -> frozenset[str]:
    return frozenset(f"__{word}__" for word in words)


CONTAINERS: dict[type, frozenset[str]] = {
    list: _dunders(*_READING, *_ORDERED, "setitem", "delitem", "add", "iadd"),
    dict: _dunders(*_READING, "setitem", "delitem", "or", "ror", "ior"),
    set: _dunders(*set(_READING) - {"getitem", "reversed"}, *_ORDERED, *_SETS, "iand", "ior")
    | _dunders("ixor", "isub"),
    bytearray: _dunders(*set(_READING) - {"reversed"}, *_ORDERED, "setitem", "delitem", "iadd"),
}
"""Operators of built-in containers that were passed by reference.

No text of them, which is text of what is in them; no repetition, which is memory at the child's
word.
"""

_LISTS = "append clear copy count extend index insert pop remove reverse sort"
_DICTS = "clear copy get items keys pop popitem setdefault update values"
_SETS_OWN = (
    "add clear copy difference difference_update discard intersection intersection_update "
    "isdisjoint issubset issuperset pop remove symmetric_difference "
    "symmetric_difference_update union update"
)
_BYTES = (
    "append clear copy count decode endswith extend find hex index insert pop remove reverse "
    "rfind rindex startswith"
)

METHODS: dict[type, frozenset[str]] = {
    list: frozenset(_LISTS.split()),
    dict: frozenset(_DICTS.split()),
    set: frozenset(_SETS_OWN.split()),
    bytearray: frozenset(_BYTES.split()),
}
"""Methods of the same: what reads and changes them. What computes something new of one (`replace`,
`join`, `split`, `center`), a child does with a copy, in its own memory.
"""

_ITERATORS: tuple[object, ...] = (
    iter([]),
    reversed([]),
    iter({}),
    iter({}.values()),
    iter({}.items()),
    reversed({}),
    reversed({}.values()),
    reversed({}.items()),
    iter(set()),
    iter(bytearray()),
)
_VIEWS: tuple[object, ...] = ({}.keys(), {}.values(), {}.items())

ITERATORS: dict[type, frozenset[str]] = {
    **{type(made): _dunders("iter", "next", "length_hint") for made in _ITERATORS},
    **{type(made): _dunders("iter", "len", "contains", "reversed", "eq", "ne") for made in _VIEWS},
}
"""What iterating such a container gives, and may be used for; these may be results too."""

STREAMS: dict[type, frozenset[str]] = {
    types.GeneratorType: _dunders("iter", "next"),
    types.AsyncGeneratorType: _dunders("aiter", "anext"),
    types.CoroutineType: _dunders("await"),
    type(map(abs, ())): _dunders("iter", "next"),
    type(filter(None, ())): _dunders("iter", "next"),
    type(zip()): _dunders("iter", "next"),
    type(enumerate(())): _dunders("iter", "next"),
    type(iter(())): _dunders("iter", "next"),
    type(iter("é")): _dunders("iter", "next"),
    type(iter("")): _dunders("iter", "next"),
    type(iter(b"")): _dunders("iter", "next"),
    type(iter(range(0))): _dunders("iter", "next"),
}
"""Iterators of the interpreter that a caller passed to be iterated."""

OPERATORS: dict[type, frozenset[str]] = {**CONTAINERS, **ITERATORS, **STREAMS}

ADDS_TO = frozenset({"__iadd__", "__ior__", "__iand__", "__ixor__", "__isub__"})
"""Operators that return their operand."""

NEVER: tuple[type, ...] = (
    types.FrameType,
    types.CodeType,
    types.TracebackType,
    types.ModuleType,
    types.CellType,
    types.MappingProxyType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    BaseException,
)
"""Objects that a child may not touch in any way, whatever is exposed."""

FRAME_NAMES = ("gi_", "cr_", "ag_", "tb_", "f_", "co_", "func_", "im_")
"""How names of frames, code and functions begin, which `expose` may not hold."""


def checked_names(names: object) -> frozenset[str]:
    """Check what a caller exposes; raise TypeError or ValueError for what must stay behind the
    guard.
    """
    if isinstance(names, (str, bytes)):
        raise TypeError(f"expose is a sequence of names, not {names!r}")
    try:
        words = list(names)  # type: ignore[call-overload]
    except TypeError:
        raise TypeError(f"expose is a sequence of names, not {names!r}") from None
    for word in words:
        if type(word) is not str:
            raise TypeError(f"a name in expose is a string, not {word!r}")
        if word in FORWARDED and word != "__call__":
            continue
        if not word.isidentifier() or word.startswith("_") or word.startswith(FRAME_NAMES):
            kind = (
                "an operator that is not forwarded"
                if is_dunder(word)
                else "a name that stays private"
            )
            raise ValueError(
                f"{word!r} in expose is {kind}: list public names, or operators such as __len__"
            )
    return frozenset(words)
