"""Hosts and the snapshot directory in Redis; hosts are kept in memory and read every second.

A new host is found within five: looking for keys costs more with every launch that Redis remembers.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import fields
from typing import cast

from redis.asyncio import Redis

from chassis.clock import Clock
from chassis.errors import FairleadError
from chassis.redis_client import redis_errors
from signalling.host import Host
from signalling.sandbox import Limits, Wall
from signalling.snapshot import Source

_log = logging.getLogger(__name__)
_PATTERN = "fairlead:host:*"
_HALVES = (":workspace", ":sandbox")
_SCAN_COUNT = 5000
_COUNTS = [each.name for each in fields(Limits) if each.name != "wall_time"]
_TURNS_PER_SCAN = 5
LEASE_SECONDS = 15.0
"""How long a registration holds; see chassis.announcement."""


class RedisHosts:
    """The registered hosts; use it as an async context manager.

    While Redis is away the last list stays, and after it came back empty (another `run_id`) it
    stays for one lease: that is how long the hosts may take to register again. A host that is gone
    is then found out by calling it.
    """

    def __init__(self, *, redis: Redis, clock: Clock, period_seconds: float = 1.0) -> None:
        self._redis = redis
        self._clock = clock
        self._period = period_seconds
        self._keys: Sequence[str] = ()
        self._hosts: Mapping[str, Host] = {}
        self._lost: Mapping[str, Host] = {}
        self._lost_until = 0.0
        self._run_id = ""
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> RedisHosts:
        await self._try(self.refresh())
        self._task = asyncio.create_task(self._keep(), name="hosts")
        return self

    async def __aexit__(self, *failure: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def all(self) -> Sequence[Host]:
        """Return every host whose two halves are registered, by id."""
        return list(self._hosts.values())

    def find(self, host_id: str) -> Host | None:
        """Return one of them."""
        return self._hosts.get(host_id)

    async def refresh(self) -> None:
        """Look for registrations now, and read them."""
        with redis_errors():
            found = [str(key) async for key in self._redis.scan_iter(_PATTERN, count=_SCAN_COUNT)]
        self._keys = sorted(key for key in found if key.endswith(_HALVES))
        await self._read()

    async def _read(self) -> None:
        with redis_errors():
            async with self._redis.pipeline(transaction=False) as pipeline:
                pipeline.info("server")
                for key in self._keys:
                    pipeline.hgetall(key)
                server, *answers = cast("list[dict[str, str]]", await pipeline.execute())
        self._note_run(server["run_id"])
        remembered = self._lost if self._clock.monotonic() < self._lost_until else {}
        self._hosts = {**remembered, **joined(dict(zip(self._keys, answers, strict=True)))}

    def _note_run(self, run_id: str) -> None:
        """Remember the hosts of a Redis that was replaced by one which does not know them."""
        if self._run_id and run_id != self._run_id:
            self._lost = self._hosts
            self._lost_until = self._clock.monotonic() + LEASE_SECONDS
        self._run_id = run_id

    async def _try(self, reading: Awaitable[None]) -> None:
        try:
            await reading
        except FairleadError:
            _log.debug("hosts were not read")

    async def _keep(self) -> None:
        """Read what is known each period; look for more each fifth time and while there is none."""
        for turn in itertools.count(1):
            await asyncio.sleep(self._period)
            look = not self._hosts or turn % _TURNS_PER_SCAN == 0
            await self._try(self.refresh() if look else self._read())


class RedisSnapshotDirectory:
    """Which hosts hold a snapshot, as the provisioners wrote it."""

    def __init__(self, *, redis: Redis) -> None:
        self._redis = redis

    async def holders(self, tenant: str, source: Source) -> frozenset[str]:
        """Return the ids of the hosts that hold the wanted commit or the digest."""
        project = hashlib.sha256(source.project.encode()).hexdigest()[:32]
        names = [name for name in (source.commit, source.digest) if name]
        keys = [f"fairlead:snapshot:{tenant}:{project}:{name}" for name in names]
        with redis_errors():
            holders = await cast("Awaitable[set[str]]", self._redis.sunion(keys))
        return frozenset(holders)


def joined(registrations: Mapping[str, Mapping[str, str]]) -> dict[str, Host]:
    """Join the two halves of each host; a host with one half, or with a broken one, is left out."""
    halves: dict[str, dict[str, Mapping[str, str]]] = {}
    for key, said in registrations.items():
        _, _, host_id, half = (*key.split(":"), "", "", "")[:4]
        if said.get("address") and half in ("workspace", "sandbox"):
            halves.setdefault(host_id, {})[half] = said
    hosts = {}
    for host_id in sorted(halves):
        workspace, sandbox = halves[host_id].get("workspace"), halves[host_id].get("sandbox")
        if workspace is not None and sandbox is not None:
            hosts[host_id] = _host(host_id, workspace, sandbox)
    return hosts


def _host(host_id: str, workspace: Mapping[str, str], sandbox: Mapping[str, str]) -> Host:
    return Host(
        host_id=host_id,
        workspace_address=workspace["address"],
        sandbox_address=sandbox["address"],
        isolation=_names(sandbox.get("isolation", "")),
        profiles=_names(sandbox.get("profiles", "")),
        walls=_walls(sandbox.get("walls", "")),
        limits=_limits(sandbox.get("limits", "")),
        sandboxes=_count(sandbox.get("sandboxes", "")),
        capacity=_count(sandbox.get("capacity", "")),
        overlay=sandbox.get("overlay") == "1",
        process_tenant=sandbox.get("process_tenant", ""),
        draining="1" in (workspace.get("draining"), sandbox.get("draining")),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for each in text.split(",") if (name := each.strip()))


def _walls(text: str) -> Mapping[str, tuple[Wall, ...]]:
    """Read what a worker says of its walls; nothing where that cannot be understood."""
    try:
        return {
            str(isolation): tuple(
                Wall(str(wall["name"]), wall["stands"] is True, str(wall["reason"]))
                for wall in walls
            )
            for isolation, walls in json.loads(text).items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _limits(text: str) -> Mapping[str, Limits]:
    """Read the limits of a worker's profiles; nothing where that cannot be understood."""
    try:
        return {
            str(profile): Limits(
                wall_time=float(limits["wall_seconds"]),
                **{name: int(limits[name]) for name in _COUNTS},
            )
            for profile, limits in json.loads(text).items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
