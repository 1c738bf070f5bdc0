"""A session of the SDK with its mesh and its core, all in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairlead_sdk.errors import (
    FairleadError,
    Unavailable,
)
from fairlead_sdk.forwarding import open_session
from fairlead_sdk.peer_session import AsyncSession
from tests.fakes.peer_core import PeerConnectionFake, PeerCoreFake
from tests.fakes.session_mesh import SessionMesh
from tests.fakes.virtual_time import run, settle


def away() -> FairleadError:
    return Unavailable("Away.", reason="unavailable")


def refusal(reason: str) -> FairleadError:
    return FairleadError("No.", reason=reason)


class Room:
    """A session, its mesh, and the client's core."""

    def __init__(self, mesh: SessionMesh, core: PeerCoreFake, session: AsyncSession) -> None:
        self.mesh = mesh
        self.core = core
        self.session = session

    @property
    def near(self) -> PeerConnectionFake:
        return self.core.made[-1]


@asynccontextmanager
async def room(
    mesh: SessionMesh | None = None, *, mode: str = "", ice_policy: str = "all"
) -> AsyncIterator[Room]:
    mesh = mesh or SessionMesh()
    core = PeerCoreFake(network=mesh.network)
    before = asyncio.all_tasks()
    try:
        async with open_session(
            mesh, "lch_a", core=core, mode=mode, ice_policy=ice_policy
        ) as session:
            await settle()
            yield Room(mesh, core, session)
    finally:
        others = asyncio.all_tasks() - before
        assert not others, others
        assert all(made.closes == 1 for made in core.made)


def failure(mesh: SessionMesh, *, seconds: float | None = None, **options: str) -> str:
    """Return the reason with which opening fails, and check how long it took."""

    async def scenario() -> str:
        started = asyncio.get_running_loop().time()
        with pytest.raises(FairleadError) as caught:
            async with room(mesh, **options):
                pytest.fail("a session was opened")
        if seconds is not None:
            taken = asyncio.get_running_loop().time() - started
            assert seconds <= taken < seconds + 1
        return caught.value.reason

    return run(scenario())
