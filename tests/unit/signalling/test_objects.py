"""Objects in the sandboxes of launches, from the caller's side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from signalling.host import Host
from signalling.launch_errors import Draining, SandboxNotFound
from signalling.object import ObjectsFrame, ObjectsOpened
from signalling.objects import Objects
from tests.fakes.launch_room import TENANT, Room, World, request
from tests.fakes.virtual_time import run, settle


class EchoingHosts:
    """Hosts whose Pythons send back what they get, and stay."""

    def __init__(self) -> None:
        self.attached: list[tuple[str, str, str, str]] = []
        self.left = 0

    @asynccontextmanager
    async def attach(
        self,
        host: Host,
        *,
        tenant: str,
        sandbox_id: str,
        python: str,
        incoming: AsyncIterator[bytes],
    ) -> AsyncIterator[AsyncIterator[ObjectsFrame]]:
        self.attached.append((host.host_id, tenant, sandbox_id, python))

        async def frames() -> AsyncIterator[ObjectsFrame]:
            yield ObjectsOpened()
            async for content in incoming:
                yield content
            await asyncio.Event().wait()

        try:
            yield frames()
        finally:
            self.left += 1


async def said(*contents: bytes) -> AsyncIterator[bytes]:
    for content in contents:
        yield content


async def held(room: Room) -> tuple[str, str]:
    """Return the host and the sandbox of a launch."""
    launch = await room.launcher.start(TENANT, request(command=None), None)
    await room.until(launch.launch_id, "provisioned")
    found = await room.launcher.get(TENANT, launch.launch_id)
    return found.host_id, found.sandbox_id


def test_what_is_said_goes_to_the_host_of_the_sandbox_and_leaving_ends_it() -> None:
    async def scenario() -> None:
        async with World().room() as room:
            host_id, sandbox_id = await held(room)
            hosts = EchoingHosts()
            objects = Objects(places=room.executor, hosts=hosts)
            frames = objects.attach(TENANT, sandbox_id, "python3", said(b"one", b"two"))
            async with aclosing(frames):
                found = [await anext(frames) for _ in range(3)]
                assert hosts.left == 0
            assert found == [ObjectsOpened(), b"one", b"two"]
            assert hosts.attached == [(host_id, TENANT, sandbox_id, "python3")]
            assert hosts.left == 1

    run(scenario())


def test_nobody_reaches_the_sandbox_of_another_tenant() -> None:
    async def scenario() -> None:
        async with World().room() as room:
            _, sandbox_id = await held(room)
            hosts = EchoingHosts()
            objects = Objects(places=room.executor, hosts=hosts)
            for tenant, asked in (("another", sandbox_id), (TENANT, "sbx_unknown")):
                with pytest.raises(SandboxNotFound):
                    await anext(objects.attach(tenant, asked, "python3", said()))
            assert hosts.attached == []

    run(scenario())


def test_a_drain_ends_what_is_attached() -> None:
    async def scenario() -> None:
        async with World().room() as room:
            _, sandbox_id = await held(room)
            hosts = EchoingHosts()
            objects = Objects(places=room.executor, hosts=hosts)
            frames = objects.attach(TENANT, sandbox_id, "python3", said())
            assert await anext(frames) == ObjectsOpened()
            waiting = asyncio.ensure_future(anext(frames))
            await settle()
            room.executor.drain()
            with pytest.raises(Draining):
                await waiting
            assert hosts.left == 1

    run(scenario())
