"""The bytes of values: `tests/vectors/membrane.json` is what another codec has to write and read.

Each vector is the message `[0, [value]]`. A change of these bytes is a change of the wire.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID

import pytest

from membrane.codec import Codec
from tests.unit.membrane.values import same

VECTORS = Path(__file__).parents[2] / "vectors" / "membrane.json"
SPACE = {
    kind.__name__: kind
    for kind in (
        date,
        datetime,
        time,
        timedelta,
        timezone,
        Decimal,
        Fraction,
        UUID,
        PosixPath,
        PurePosixPath,
        PureWindowsPath,
    )
} | {"UTC": UTC}


class Thing:
    """Stand for whatever goes by handle."""


THING = Thing()


def vectors() -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(VECTORS.read_text())["values"]
    return found


def value_of(vector: dict[str, str]) -> Any:
    match vector["name"]:
        case "handle":
            return THING
        case "list that holds itself":
            ring: list[Any] = [1]
            ring.append(ring)
            return ring
        case "list in two places":
            shared = [1]
            return [shared, {"k": shared}]
        case "tuple in a cycle":
            middle: list[Any] = []
            middle.append((middle, {"k"}))
            return middle
        case "numpy array":
            numpy = pytest.importorskip("numpy")
            return numpy.arange(6, dtype="<i2").reshape(2, 3)
        case "numpy scalar":
            return pytest.importorskip("numpy").float32(1.5)
    # The texts are ours, and only Python reads them.
    return eval(vector["value"], SPACE)  # noqa: S307


def vector_codec() -> Codec:
    def export(value: object) -> list[object]:
        assert value is THING
        return [3, 7, 2, None, None]

    def resolve(payload: list[object]) -> object:
        assert payload == [3, 7, 2, None, None]
        return THING

    return Codec(export=export, resolve=resolve)


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector["name"])
def test_values_are_written_and_read_as_the_vectors_say(vector: dict[str, str]) -> None:
    value = value_of(vector)
    codec = vector_codec()
    encoded = bytes.fromhex(vector["message"])
    assert codec.encode([0, [value]]).hex(" ") == vector["message"]
    received = codec.decode(encoded)[-1][0]
    if vector["name"].startswith("numpy"):
        assert repr(received) == repr(value)
    else:
        assert same(value, received)


def test_names_are_unique() -> None:
    names = [vector["name"] for vector in vectors()]
    assert len(names) == len(set(names)) > 50
