"""The client of a command, and launches by the beginning of their id."""

from __future__ import annotations

import re

from fairlead_sdk.errors import InvalidArgument, LaunchNotFound
from fairlead_sdk.fairlead import AsyncFairlead
from fairlead_sdk.records import LaunchRecord

_WHOLE_ID = re.compile(r"lch_[a-z2-7]{26}")
_SEARCHED = 1000


async def find_launch(client: AsyncFairlead, text: str) -> LaunchRecord:
    """Find the launch whose id is `text` or begins with it, with or without `lch_`."""
    if _WHOLE_ID.fullmatch(text):
        return await client.launches.get(text)
    prefix = text if text.startswith("lch_") else f"lch_{text}"
    launches = await client.launches.list(limit=_SEARCHED) if text else ()
    found = [launch for launch in launches if launch.launch_id.startswith(prefix)]
    if len(found) > 1:
        raise InvalidArgument(
            f"{len(found)} launches begin with {text}.",
            reason="launch_ambiguous",
            remedy="Give more of the id: fairlead ps --all",
        )
    if not found:
        raise LaunchNotFound(
            f"No launch begins with {text!r}.",
            reason="launch_not_found",
            remedy="fairlead ps --all",
        )
    return found[0]
