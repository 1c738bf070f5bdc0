"""Opening ports of sandboxes: what happens meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from chassis.errors import FairleadError
from fairlead_tunnel.conversation import Conversation
from sandbox_worker.execution_errors import ExecutionNotFound
from sandbox_worker.held_sandbox import SandboxOrder
from sandbox_worker.port_carrier import PortCarrier
from tests.fakes.clock import FakeClock
from tests.fakes.isolation import ScriptedEnclosure
from tests.unit.sandbox_worker.test_small_parts import bench

pytestmark = pytest.mark.asyncio


class NoTerminals:
    """Terminals of executions that are not there."""

    def check(self, *, tenant: str, sandbox_id: str, execution_id: str) -> None:
        raise ExecutionNotFound(execution_id)

    async def hold(self, talk: Conversation, *, tenant: str, execution_id: str) -> None:
        raise AssertionError("nothing is held that was not checked")


class Room:
    """A sandbox whose init takes its time to connect, and a carrier of one connection."""

    def __init__(self) -> None:
        self.sandboxes = bench(FakeClock())
        self.carrier = PortCarrier(sandboxes=self.sandboxes, terminals=NoTerminals(), most=1)
        self.sandbox_id = ""

    async def start(self) -> asyncio.Task[None]:
        made = await self.sandboxes.create(tenant="t", key="k", order=SandboxOrder())
        self.sandbox_id = made.sandbox_id
        enclosure = self.sandboxes.enter("t", self.sandbox_id)[1]
        assert isinstance(enclosure, ScriptedEnclosure)
        enclosure.connecting.clear()
        opening = asyncio.create_task(self.open())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not opening.done()
        return opening

    async def open(self, tenant: str = "t") -> None:
        await self.carrier.open(
            tenant=tenant,
            sandbox_id=self.sandbox_id,
            port=80,
            address="unix:/nowhere",
            ticket=bytes(32),
        )

    async def refusal(self, opening: asyncio.Task[None]) -> str:
        with pytest.raises(FairleadError) as caught:
            async with asyncio.timeout(5):
                await opening
        return caught.value.reason


async def test_a_sandbox_that_is_released_meanwhile_is_a_refusal() -> None:
    it = Room()
    opening = await it.start()
    await it.sandboxes.release(tenant="t", sandbox_id=it.sandbox_id)
    assert await it.refusal(opening) == "sandbox_not_found"
    await it.sandboxes.close()


async def test_a_caller_that_leaves_frees_its_place() -> None:
    it = Room()
    opening = await it.start()
    assert await it.refusal(asyncio.create_task(it.open())) == "connections_exhausted"
    opening.cancel()
    await asyncio.wait((opening,))
    await it.carrier.close()
    foreign = asyncio.create_task(it.open(tenant="other"))
    assert await it.refusal(foreign) == "sandbox_not_found"
    await it.sandboxes.close()


async def test_the_worker_may_stop_meanwhile() -> None:
    it = Room()
    opening = await it.start()
    await it.carrier.close()
    assert await it.refusal(opening) == "sandbox_not_found"
    await it.sandboxes.close()
