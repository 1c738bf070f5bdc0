"""What an init is told before it is taken: what it is to become."""

from __future__ import annotations

import socket

import pytest

from chassis.errors import FairleadError
from chassis.ids import random_id
from chassis.packets import pack
from fairlead_walls.survey import Survey
from sandbox_worker.isolation import walled as walled_module
from sandbox_worker.isolation.held_limits import HeldLimits
from sandbox_worker.isolation.init_link import InitEnclosure, announce
from sandbox_worker.isolation.walled import WalledIsolation
from sandbox_worker.ports import Tree
from sandbox_worker.sandbox import Hold, Limits, NetworkMode, NetworkPolicy
from tests.fakes.walled import open_walled, run

pytestmark = pytest.mark.asyncio


async def enclosed(isolation: WalledIsolation) -> InitEnclosure:
    none = NetworkPolicy(NetworkMode.NONE)
    return await isolation.enclose(random_id("sbx"), Limits(), none, tenant="ada")


@pytest.mark.parametrize("pool_size", [0, 2])
async def test_one_that_was_told_nothing_is_no_sandbox(
    walls: Survey, monkeypatch: pytest.MonkeyPatch, pool_size: int
) -> None:
    """Instead of one without its limits."""
    async with open_walled(walls, pool_size=pool_size) as isolation:
        with monkeypatch.context() as patched:
            patched.setattr(walled_module, "announce", lambda *_: None)
            with pytest.raises(FairleadError) as caught:
                await enclosed(isolation)
        assert caught.value.reason == "isolation_failed"
        assert "Invalid argument" in caught.value.message
        enclosure = await enclosed(isolation)
        assert await run(enclosure, "echo on") == "on\n"
        await enclosure.destroy()


@pytest.mark.parametrize("pool_size", [0, 2])
async def test_one_that_ends_once_it_was_told_is_followed_by_another(
    walls: Survey, monkeypatch: pytest.MonkeyPatch, pool_size: int
) -> None:
    told: list[int] = []

    def ending(
        link: socket.socket, held: HeldLimits, workspace: Tree | None, hold: Hold | None
    ) -> None:
        announce(link, held, workspace, hold)
        if not told:
            link.send(pack(b"release"))
        told.append(link.fileno())

    monkeypatch.setattr(walled_module, "announce", ending)
    async with open_walled(walls, pool_size=pool_size) as isolation:
        enclosure = await enclosed(isolation)
        assert len(told) == 2
        assert await run(enclosure, "echo alive") == "alive\n"
        await enclosure.destroy()
