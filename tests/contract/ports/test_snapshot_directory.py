"""The directory of snapshots against a real Redis: losing it, or getting an older one back, costs
a directory miss until it is written again, and never a workspace.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.asyncio import Redis

from chassis.errors import Unavailable
from tests.fakes.clock import FakeClock
from tests.fakes.git_client import GitClient
from tests.fakes.store_room import StoreRoom, open_store_room
from workspace_provisioner import snapshot_directory
from workspace_provisioner.snapshot_directory import RedisSnapshotDirectory
from workspace_provisioner.sources import Source
from workspace_provisioner.workspaces import Snapshot

HOST = "hst_aaaaaaaaaaaaaaaaaaaaaaaaaa"

pytestmark = pytest.mark.asyncio


class CountedDirectory(RedisSnapshotDirectory):
    """Counts what it writes."""

    writes = 0

    async def publish(self, snapshot: Snapshot) -> None:
        self.writes += 1
        await super().publish(snapshot)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a loaded machine answer late: how long a Redis is waited for is not what these show."""
    monkeypatch.setattr(snapshot_directory, "_PATIENCE_SECONDS", 60.0)


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    found.write("a", b"1")
    found.commit()
    return found


async def hosts_of(redis: Redis, source: Source) -> set[str]:
    key = source.key
    entry = f"fairlead:snapshot:{key.tenant}:{key.digest}:{source.commit}"
    return {str(host) for host in await redis.smembers(entry)}


async def upload_more(room: StoreRoom, client: GitClient) -> Source:
    base = client.head()
    client.write("a", base.encode())
    client.commit()
    await room.upload(client, having=[base])
    return client.source()


async def test_a_redis_that_lost_everything_is_filled_again(
    redis: Redis, tmp_path: Path, client: GitClient
) -> None:
    directory = CountedDirectory(redis=redis, host_id=HOST)
    async with open_store_room(tmp_path / "host", directory=directory) as room:
        await room.upload(client)
        source = client.source()
        await room.importer.republish()  # at start, whatever Redis says
        assert await hosts_of(redis, source) == {HOST}
        await redis.flushall()
        assert await room.gate.check(source) is None  # the host knows for itself
        await room.importer.republish()
        assert await hosts_of(redis, source) == {HOST}


async def test_an_older_redis_is_noticed(redis: Redis, tmp_path: Path, client: GitClient) -> None:
    directory = CountedDirectory(redis=redis, host_id=HOST)
    async with open_store_room(tmp_path / "host", directory=directory) as room:
        await room.upload(client)
        await room.importer.republish()
        older = {key: await redis.get(key) for key in await redis.keys("*published*")}
        assert older
        source = await upload_more(room, client)
        for key, content in older.items():
            await redis.set(key, content or "")
        await redis.delete(*await redis.keys(f"*:{source.commit}"))
        assert await hosts_of(redis, source) == set()
        await room.importer.republish()
        assert await hosts_of(redis, source) == {HOST}


async def test_nothing_is_written_again_while_nothing_is_lost(
    redis: Redis, tmp_path: Path, client: GitClient
) -> None:
    directory, clock = CountedDirectory(redis=redis, host_id=HOST), FakeClock()
    async with open_store_room(tmp_path / "host", directory=directory, clock=clock) as room:
        await room.upload(client)
        await upload_more(room, client)
        await room.importer.republish()
        writes = directory.writes
        clock.advance(600)
        await room.importer.republish()
        assert directory.writes == writes
        clock.advance(24 * 3600)  # entries end after a week
        await room.importer.republish()
        assert directory.writes == writes + 2


async def test_what_could_not_be_written_is_written_later(
    redis: Redis, tmp_path: Path, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = CountedDirectory(redis=redis, host_id=HOST)

    async def away(*_: object) -> None:
        raise Unavailable("away", reason="redis_unavailable")

    async with open_store_room(tmp_path / "host", directory=directory) as room:
        await room.importer.republish()
        with monkeypatch.context() as patch:
            patch.setattr(directory, "publish", away)
            await room.upload(client)
        source = client.source()
        assert await hosts_of(redis, source) == set()
        assert await room.gate.check(source) is None
        await room.importer.republish()
        assert await hosts_of(redis, source) == {HOST}
