"""A class like those that are isolated, for rehearsals: see `rehearsing`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar


class Rehearsed:
    """Have a little of what classes have."""

    kind: ClassVar[str] = "rehearsed"

    def __init__(self, name: str, size: int = 0) -> None:
        self.name = name
        self._size = size

    @property
    def size(self) -> int:
        """Tell the size."""
        return self._size

    def add(self, number: int) -> int:
        """Add to the size and return it."""
        self._size += number
        return self._size

    def describe(self, parts: dict[str, object]) -> dict[str, object]:
        """Return the parts, with the name."""
        return {"name": self.name, **{key: str(part) for key, part in sorted(parts.items())}}

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._size))
