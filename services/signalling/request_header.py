"""Reads one header of a request or an answer: the framework decodes all of them to find one."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any


def header_of(scope: MutableMapping[str, Any], name: bytes) -> str:
    """Return the first header of a name in lower case, or an empty text."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return ""
