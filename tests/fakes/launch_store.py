"""The shared memory of launches, in memory; it passes the contract suite that the Redis adapters
pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from chassis.errors import Unavailable
from signalling.launch import ControlEvent
from signalling.launch_record import ExecutionPlace, LaunchRecord
from signalling.ports import Saved
from signalling.redis_launches import PageTokenInvalid


class FakeLaunchStore:
    """Records, events and locations; `away` makes every call fail, `lose` forgets everything."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], LaunchRecord] = {}
        self.events: dict[str, dict[int, ControlEvent]] = {}
        self.executions: dict[str, ExecutionPlace] = {}
        self.marks: set[str] = set()
        self.away = False
        self.writes = 0
        self._changed = asyncio.Event()

    def lose(self) -> None:
        """Forget everything, as a Redis does that was restarted."""
        self.records.clear()
        self.events.clear()
        self.executions.clear()
        self.marks.clear()

    async def create(self, record: LaunchRecord) -> LaunchRecord | None:
        self._reach()
        known = self.records.setdefault((record.tenant, record.launch_id), record)
        return None if known == record else known

    async def save(self, record: LaunchRecord, events: Sequence[ControlEvent]) -> Saved:
        self._reach()
        stored = self.records.get((record.tenant, record.launch_id))
        if stored is None:
            return Saved.MISSING
        behind = record.version - stored.version
        if behind != 1 and not (behind == 0 and stored.owner == record.owner):
            return Saved.CONFLICT
        self._write(record, events)
        return Saved.DONE

    async def restore(self, record: LaunchRecord, events: Sequence[ControlEvent]) -> None:
        self._reach()
        self._write(record, events)

    async def discard(self, record: LaunchRecord) -> None:
        self._reach()
        self.records.pop((record.tenant, record.launch_id), None)
        self.events.pop(record.launch_id, None)

    async def get(self, tenant: str, launch_id: str) -> LaunchRecord | None:
        self._reach()
        return self.records.get((tenant, launch_id))

    async def page(self, tenant: str, size: int, token: str) -> tuple[Sequence[LaunchRecord], str]:
        self._reach()
        records = sorted(
            (record for (owner, _), record in self.records.items() if owner == tenant),
            key=lambda record: (record.launch.created_at, record.launch_id),
            reverse=True,
        )
        ids = [record.launch_id for record in records]
        if token and token not in ids:
            raise PageTokenInvalid
        start = ids.index(token) + 1 if token else 0
        page = records[start : start + size]
        return page, page[-1].launch_id if start + size < len(records) else ""

    async def owned(self, owner: str) -> Sequence[LaunchRecord]:
        self._reach()
        return [
            record
            for record in self.records.values()
            if record.owner == owner and not record.launch.finished
        ]

    async def claim(self, owner: str) -> bool:
        self._reach()
        absent = owner not in self.marks
        self.marks.add(owner)
        return absent

    async def after(self, launch_id: str, number: int, *, wait: float) -> Sequence[ControlEvent]:
        self._reach()
        try:
            async with asyncio.timeout(wait or None):
                while not (found := self._after(launch_id, number)) and wait:
                    await self._changed.wait()
        except TimeoutError:
            return []
        return found

    async def sandbox(self, sandbox_id: str) -> ExecutionPlace | None:
        self._reach()
        for record in self.records.values():
            if record.launch.sandbox_id == sandbox_id:
                return ExecutionPlace(record.tenant, record.host, sandbox_id)
        return None

    async def execution(self, execution_id: str) -> ExecutionPlace | None:
        self._reach()
        for record in self.records.values():
            if record.launch.execution_id == execution_id:
                return ExecutionPlace(record.tenant, record.host, record.launch.sandbox_id)
        return self.executions.get(execution_id)

    async def put_execution(self, execution_id: str, place: ExecutionPlace) -> None:
        self._reach()
        self.executions[execution_id] = place

    def _after(self, launch_id: str, number: int) -> list[ControlEvent]:
        kept = self.events.get(launch_id, {})
        return [kept[key] for key in sorted(kept) if key > number]

    def _write(self, record: LaunchRecord, events: Sequence[ControlEvent]) -> None:
        self.writes += 1
        self.records[record.tenant, record.launch_id] = record
        kept = self.events.setdefault(record.launch_id, {})
        for event in events:
            kept.setdefault(event.number, event)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _reach(self) -> None:
        if self.away:
            raise Unavailable("Redis is unavailable.", reason="redis_unavailable")
