"""Typed reading of JSON documents: every reader gives a value of its type or the field's zero
value.

A server may leave out what is empty, and a newer one may add fields; both read well here.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]

_EPOCH = datetime.fromtimestamp(0, tz=UTC)


def parse_object(text: str | bytes) -> JsonObject:
    """Parse one JSON object; `ValueError` when the text is none."""
    value: JsonValue = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def text(document: JsonObject, name: str) -> str:
    """Read a string; empty when absent."""
    value = document.get(name)
    return value if isinstance(value, str) else ""


def number(document: JsonObject, name: str) -> int:
    """Read a whole number, which may be sent as a string (64-bit values in protobuf's JSON form); 0
    when absent.
    """
    return optional_number(document, name) or 0


def optional_number(document: JsonObject, name: str) -> int | None:
    """Read a whole number; `None` when absent."""
    value = document.get(name)
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return int(value)
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    return None


def seconds(document: JsonObject, name: str) -> float | None:
    """Read a duration in seconds; `None` when absent."""
    value = document.get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None


def flag(document: JsonObject, name: str) -> bool:
    """Read a truth value; false when absent."""
    return document.get(name) is True


def time(document: JsonObject, name: str) -> datetime | None:
    """Read an RFC 3339 time; `None` when absent or malformed."""
    value = document.get(name)
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def time_or_epoch(document: JsonObject, name: str) -> datetime:
    """Read an RFC 3339 time that is always sent; 1970 when a server left it out."""
    return time(document, name) or _EPOCH


def child(document: JsonObject, name: str) -> JsonObject | None:
    """Read an object; `None` when absent."""
    value = document.get(name)
    return value if isinstance(value, dict) else None


def children(document: JsonObject, name: str) -> list[JsonObject]:
    """Read a list of objects; empty when absent."""
    value = document.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def texts(document: JsonObject, name: str) -> tuple[str, ...]:
    """Read a list of strings; empty when absent."""
    value = document.get(name)
    if not isinstance(value, list):
        return ()
    return tuple(item for item in value if isinstance(item, str))
