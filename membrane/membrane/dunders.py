"""Operators of Python's data model that a proxy forwards, each by its name; which ones a class has
says its description.
"""

from __future__ import annotations

_BINARY = [
    "add",
    "sub",
    "mul",
    "matmul",
    "truediv",
    "floordiv",
    "mod",
    "divmod",
    "pow",
    "lshift",
    "rshift",
    "and",
    "xor",
    "or",
]
_IN_PLACE = [name for name in _BINARY if name != "divmod"]

FORWARDED: frozenset[str] = frozenset(
    [f"__{name}__" for name in _BINARY]
    + [f"__r{name}__" for name in _BINARY]
    + [f"__i{name}__" for name in _IN_PLACE]
    + [
        f"__{name}__"
        for name in [
            "repr",
            "str",
            "bytes",
            "format",
            "bool",
            "len",
            "length_hint",
            "hash",
            "dir",
            "lt",
            "le",
            "eq",
            "ne",
            "gt",
            "ge",
            "iter",
            "next",
            "reversed",
            "contains",
            "getitem",
            "setitem",
            "delitem",
            "missing",
            "aiter",
            "anext",
            "await",
            "call",
            "enter",
            "exit",
            "aenter",
            "aexit",
            "neg",
            "pos",
            "abs",
            "invert",
            "int",
            "float",
            "complex",
            "index",
            "round",
            "trunc",
            "floor",
            "ceil",
            "fspath",
        ]
    ]
)

ABSENT_ONLY: frozenset[str] = frozenset({"__class_getitem__"})
"""Forwarded as plain attributes, but a class may say that it has none by None."""

AWAITED: frozenset[str] = frozenset({"__anext__", "__aenter__", "__aexit__", "__await__"})
"""Operators whose results are awaited on the side of the object: one round trip brings the result.
"""

READABLE: frozenset[str] = frozenset(
    {
        "__dict__",
        "__doc__",
        "__name__",
        "__qualname__",
        "__module__",
        "__annotations__",
        "__file__",
        "__path__",
        "__version__",
        "__all__",
        "__slots__",
        "__class_getitem__",
    }
)
"""Dunder attributes that a proxy of an untrusted child's object reads.

No others: C libraries believe what some of them say, `__array_interface__` even where memory lies.
"""
