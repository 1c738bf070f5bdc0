"""Attacks on the isolation of a whole worker: who gets a sandbox without walls, who does not."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chassis.errors import FairleadError
from fairlead_walls.survey import Survey
from tests.contract.wire.sandbox_room import (
    TENANT,
    SandboxRoom,
    own_worker,
    room_in_process,
    room_settings,
)
from tests.fakes import walled

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def walls(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """Skip where sandboxes cannot be walled."""
    return walled.survey(tmp_path_factory.mktemp("walls"))


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        yield Path(directory)


async def refusal(room: SandboxRoom, tenant: str) -> str:
    """Return why a tenant gets no sandbox without walls, empty when one is made."""
    try:
        await room.create(isolation="process", tenant=tenant)
    except FairleadError as error:
        return error.reason
    return ""


@pytest.mark.usefixtures("walls")
async def test_a_worker_with_walls_offers_nothing_less(tmp_path: Path, sockets: Path) -> None:
    settings = room_settings(tmp_path, sockets, expose_host_to_one_tenant=False)
    async with room_in_process(settings) as room:
        assert await refusal(room, TENANT) == "isolation_unavailable"
        assert (await room.create(isolation="", tenant=TENANT)).isolation == "walled"
        assert (await room.create(isolation="", tenant="other")).isolation == "walled"
    assert not (tmp_path / "sandboxes" / "process_tenant").exists()


@pytest.mark.usefixtures("walls")
async def test_one_tenant_gets_processes_where_the_operator_offers_them(
    tmp_path: Path, sockets: Path
) -> None:
    async with room_in_process(room_settings(tmp_path, sockets)) as room:
        # A caller who asks for nothing takes neither the walls down nor the place of the tenant.
        assert (await room.create(isolation="", tenant="other")).isolation == "walled"
        sandbox = await room.create(isolation="process")
        who = await room.run(sandbox.sandbox_id, "id", "-u")
        assert int(who.stdout) != 0
        assert await refusal(room, "other") == "host_reserved"
        assert (await room.create(isolation="", tenant="other")).isolation == "walled"
    async with room_in_process(room_settings(tmp_path, sockets)) as room:
        assert await refusal(room, "other") == "host_reserved"
        assert await refusal(room, TENANT) == ""


async def test_of_two_who_race_to_be_first_one_is_served(tmp_path: Path, sockets: Path) -> None:
    async with room_in_process(room_settings(tmp_path, sockets)) as room:
        tenants = ["one", "two"] * 4
        reasons = await asyncio.gather(*(refusal(room, tenant) for tenant in tenants))
    served = {tenant for tenant, reason in zip(tenants, reasons, strict=True) if not reason}
    assert len(served) == 1
    expected = ["" if tenant in served else "host_reserved" for tenant in tenants]
    assert list(reasons) == expected
    assert (tmp_path / "sandboxes" / "process_tenant").read_text() in served


async def test_a_worker_killed_before_the_first_use_keeps_to_the_tenant(
    tmp_path: Path, sockets: Path
) -> None:
    """It is killed after the tenant is recorded and before its sandbox is there: the directory that
    the sandbox needs cannot be made.
    """
    settings = room_settings(tmp_path, sockets)
    async with own_worker(settings) as (worker, room):
        (tmp_path / "sandboxes" / "private").write_bytes(b"no directory")
        assert await refusal(room, "first") == "isolation_failed"
        worker.kill()
        worker.wait()
    (tmp_path / "sandboxes" / "private").unlink()
    async with own_worker(settings) as (_, room):
        assert await refusal(room, "second") == "host_reserved"
        assert await refusal(room, "first") == ""


async def test_a_tenant_that_cannot_be_recorded_is_not_served(
    tmp_path: Path, sockets: Path
) -> None:
    async with room_in_process(room_settings(tmp_path, sockets)) as room:
        # What cannot be read as a name is nobody's: the host is then served to nobody at all.
        (tmp_path / "sandboxes" / "process_tenant").mkdir()
        assert await refusal(room, TENANT) == "storage_unavailable"
