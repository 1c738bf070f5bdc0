"""Reads one header of a request; the framework's mapping decodes every one to find it."""

from __future__ import annotations

from starlette.types import Scope


def header_of(scope: Scope, name: bytes) -> str:
    """Return the first header of a name in lower case, or an empty text."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return ""
