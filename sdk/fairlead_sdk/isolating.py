"""What holds objects, a launch or a sandbox of its own: `isolate` and its kin, for both clients."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Unpack

    from fairlead_sdk.client import FrontDoor
    from fairlead_sdk.objects import IsolateOptions, PrewarmOptions, SandboxObjects
    from fairlead_sdk.records import LaunchRecord
    from fairlead_sdk.sandbox_records import SandboxRecord


class AsyncIsolating:
    """What has a sandbox that objects can live in; `record` names it."""

    record: LaunchRecord | SandboxRecord
    _door: FrontDoor

    @cached_property
    def objects(self) -> SandboxObjects:
        """Where its objects live; `isolate` is the way to them."""
        from fairlead_sdk.objects import SandboxObjects

        return SandboxObjects(
            door=self._door,
            sandbox_id=self.record.sandbox_id,
            isolation=self.record.isolation,
        )

    async def isolate(self, target: str, **options: Unpack[IsolateOptions]) -> type[Any]:
        """Give a proxy class of a class that lives in its sandbox, whose module is never imported
        here.

        `target` is "package.module:Class"; the workspace is searched first, then `paths` in it.
        `python` names the sandbox's Python, "python3" by default; `share_key`, `policy`,
        `type_rules`, `keepalive`, `expose`, `preload`, `deadline` and `memory_bytes` are as in
        `membrane.isolate`; without `memory_bytes` the sandbox's limits hold.
        Its proxies may be used from any thread, and block that while they wait. Raises what
        `membrane.isolate` does; `membrane.ChildLost` also where the sandbox is gone.
        """
        return await asyncio.to_thread(self.objects.isolate, target, options)

    async def prewarm(self, share_key: str, **options: Unpack[PrewarmOptions]) -> bool:
        """Start the child of a share key in its sandbox ahead of its use; False where that is there
        already. Options and errors are those of `isolate`; `keepalive` is 30 s where none is given.
        """
        return await asyncio.to_thread(self.objects.prewarm, share_key, options)

    async def close_session(self, share_key: str) -> bool:
        """End the child of a share key for all who use it; False where there is none. Never waits
        for a running call.
        """
        return await asyncio.to_thread(self.objects.close_session, share_key)

    async def _close_objects(self) -> None:
        """End the children that its classes have; objects in them are gone."""
        # Also where there are none yet: another thread may just be asking for the first one.
        await asyncio.to_thread(self.objects.close)


class Isolating:
    """The same for the blocking client."""

    _isolating: AsyncIsolating

    def isolate(self, target: str, **options: Unpack[IsolateOptions]) -> type[Any]:
        """Give a proxy class of a class that lives in its sandbox; see `AsyncIsolating.isolate`."""
        return self._isolating.objects.isolate(target, options)

    def prewarm(self, share_key: str, **options: Unpack[PrewarmOptions]) -> bool:
        """Start the child of a share key ahead of its use; see `AsyncIsolating.prewarm`."""
        return self._isolating.objects.prewarm(share_key, options)

    def close_session(self, share_key: str) -> bool:
        """End the child of a share key for all who use it; False where there is none."""
        return self._isolating.objects.close_session(share_key)
