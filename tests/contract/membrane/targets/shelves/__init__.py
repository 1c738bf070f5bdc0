"""A protected package with a module inside."""

from __future__ import annotations

from tests.contract.membrane.targets.shelves import wood


class Rack:
    """A rack behind the wall."""

    def wood(self) -> str:
        return wood.KIND
