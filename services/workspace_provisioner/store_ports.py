"""What keeping the object stores in order needs from the outside."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from workspace_provisioner.sources import ProjectKey


class StoreCare(Protocol):
    """What keeps the object stores in order; each call is alone with its store."""

    async def keys(self) -> Sequence[ProjectKey]:
        """Return the keys of the stores that have a record."""
        ...

    async def tend(self, key: ProjectKey) -> None:
        """Put the store right, join small packs, and let old snapshots go; raises StoreLocked."""
        ...

    async def prune(self, key: ProjectKey, *, live_since: datetime | None) -> None:
        """Delete what nothing needs any more, and a store that was of no use for long. The oldest
        live workspace of the tenant was made at `live_since`; None when there is none.
        """
        ...
