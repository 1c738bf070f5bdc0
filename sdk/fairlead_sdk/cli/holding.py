"""Keeping a sandbox while somebody sits at a terminal in it."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead_sdk.client import Sleep
    from fairlead_sdk.fairlead import AsyncFairlead

_LOOK_SECONDS = 240.0
_LEAST = timedelta(minutes=10)


async def hold(client: AsyncFairlead, execution_id: str, *, sleep: Sleep) -> None:
    """Renew the lease of an execution's sandbox, or that of its launch, whenever less than ten
    minutes of it are left; until it is cancelled. A mesh that is away is asked again.
    """
    from fairlead_sdk.errors import FairleadError

    sandbox_id = ""
    while True:
        await sleep(_LOOK_SECONDS)
        with suppress(FairleadError):
            sandbox_id = sandbox_id or (await client.executions.get(execution_id)).sandbox_id
            record = (await client.sandboxes.get(sandbox_id)).record
            if record.expires_at - datetime.now(UTC) > _LEAST:
                continue
            if record.launch_id:
                await client.launches.renew(record.launch_id)
            else:
                await client.sandboxes.renew(sandbox_id)
