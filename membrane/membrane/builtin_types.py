"""Types that both sides have and that cross by name: a closed table, so that a name never looks
anything else up.
"""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import fractions
import pathlib
import types
import uuid

_TYPES: tuple[type, ...] = (
    *(
        kind
        for kind in vars(builtins).values()
        if isinstance(kind, type) and issubclass(kind, BaseException)
    ),
    object,
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    memoryview,
    list,
    tuple,
    dict,
    set,
    frozenset,
    slice,
    range,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    collections.OrderedDict,
    collections.deque,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    pathlib.PurePath,
    pathlib.PurePosixPath,
    pathlib.PureWindowsPath,
    pathlib.Path,
    pathlib.PosixPath,
    types.SimpleNamespace,
)

BUILTINS_BY_NAME: dict[str, type] = {
    f"{kind.__module__}.{kind.__qualname__}": kind for kind in _TYPES
}
NAMES_OF_BUILTINS: dict[type, str] = {kind: name for name, kind in BUILTINS_BY_NAME.items()}
EXCEPTIONS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in _TYPES
    if issubclass(kind, Exception) and not issubclass(kind, BaseExceptionGroup)
}
"""Built-in types that a remote exception may arrive as: never what only BaseException is."""
