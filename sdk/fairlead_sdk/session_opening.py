"""Opens a session: asks the mesh for it, makes its connection, and frees both at the end."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from fairlead_sdk.client import make_idempotency_key
from fairlead_sdk.errors import FairleadError
from fairlead_sdk.peer_session import AsyncSession, servers_of
from fairlead_sdk.session_api import SessionApi
from fairlead_sdk.session_errors import (
    ConnectTimeout,
    CoreUnable,
    OpenTimeout,
    is_gone,
    may_pass,
)
from fairlead_sdk.session_records import COMPLETE, TRICKLE, TUNNEL, OpenedSession
from fairlead_sdk.session_talk import Pace, Sleep
from fairlead_tunnel.peer_connection import (
    CoreLacks,
    IcePolicy,
    PeerConnection,
    PeerCore,
    PeerPlan,
)

GOODBYE_SECONDS = 5.0


class OpenSession:
    """Opens sessions of one mesh over one WebRTC core."""

    def __init__(
        self,
        *,
        api: SessionApi,
        core: PeerCore,
        pace: Pace | None,
        sleep: Sleep,
        seal_secret: bytes,
    ) -> None:
        self._api = api
        self._core = core
        self._pace = pace or Pace()
        self._sleep = sleep
        self._seal_secret = seal_secret

    @asynccontextmanager
    async def connected(
        self,
        launch_id: str,
        mode: str,
        ice_policy: str,
        loading: asyncio.Future[None],
        seconds: float,
    ) -> AsyncIterator[AsyncSession]:
        """Hold a session that is connected within `seconds`; one whose gateway goes away meanwhile,
        or takes none, is replaced by another one, at another gateway.

        Raises OpenTimeout, ConnectTimeout, ConnectionFailed, and what `hold` raises or the mesh
        says.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        for pause in (*self._pace.pauses, None):
            async with AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout_at(deadline):
                        session = await stack.enter_async_context(
                            self.hold(launch_id, mode, ice_policy, loading)
                        )
                    await session.wait_connected(deadline - loop.time())
                except TimeoutError:
                    raise OpenTimeout(seconds) from None
                except ConnectTimeout:
                    raise ConnectTimeout(seconds) from None
                except FairleadError as error:
                    is_last = pause is None or deadline - loop.time() <= pause
                    if is_last or not is_gone(error):
                        raise
                else:
                    yield session
                    return
            await self._sleep(pause or 0.0)

    @asynccontextmanager
    async def hold(
        self, launch_id: str, mode: str, ice_policy: str, loading: asyncio.Future[None]
    ) -> AsyncIterator[AsyncSession]:
        """Hold a session that negotiates; at the end it is closed on both sides.

        Raises CoreUnable for a mode that the core lacks, and what the mesh refuses.
        """
        if mode == TUNNEL:
            raise CoreUnable("No WebRTC core makes a tunnel: `sessions.create` opens one.")
        if mode == TRICKLE and not self._core.can_trickle:
            raise CoreUnable(f"The WebRTC core {self._core.name} cannot trickle candidates.")
        opened = await self._opened(launch_id, mode, ice_policy)
        connection: PeerConnection | None = None
        try:
            await loading
            connection = self._connect(opened)
            session = AsyncSession(
                api=self._api,
                opened=opened,
                connection=connection,
                core_name=self._core.name,
                pace=self._pace,
                sleep=self._sleep,
            )
            async with session.running():
                yield session
        finally:
            if connection is not None:
                await connection.close()
            with contextlib.suppress(FairleadError, TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._api.close_session(opened.session.session_id)

    async def _opened(self, launch_id: str, mode: str, ice_policy: str) -> OpenedSession:
        """Ask for the wanted mode, or for the best that both sides can."""
        wanted = mode or (TRICKLE if self._core.can_trickle else COMPLETE)
        try:
            return await self._asked(launch_id, wanted, ice_policy)
        except FairleadError as error:
            if mode or wanted == COMPLETE or error.reason != "mode_unsupported":
                raise
        return await self._asked(launch_id, COMPLETE, ice_policy)

    async def _asked(self, launch_id: str, mode: str, ice_policy: str) -> OpenedSession:
        """Ask once, and again after failures that may pass; the key makes it one session."""
        key = make_idempotency_key()
        for pause in (*self._pace.pauses, None):
            try:
                async with asyncio.timeout(self._pace.call):
                    return await self._api.open_session(
                        launch_id, mode=mode, ice_policy=ice_policy, key=key
                    )
            except (FairleadError, TimeoutError) as error:
                if pause is None or not may_pass(error):
                    raise
                await self._sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _connect(self, opened: OpenedSession) -> PeerConnection:
        policy = opened.session.ice_policy
        plan = PeerPlan(
            trickles=opened.session.mode == TRICKLE,
            policy=IcePolicy(policy) if policy in set(IcePolicy) else IcePolicy.ALL,
            servers=servers_of(opened.servers),
        )
        try:
            connection = self._core.connect(plan)
        except CoreLacks as error:
            raise CoreUnable(error.message) from error
        if not self._seal_secret:
            return connection
        from fairlead_tunnel.sealed_connection import SealedConnection
        from fairlead_tunnel.sealed_signals import SALT_BYTES

        return SealedConnection(
            connection=connection,
            secret=self._seal_secret,
            session=opened.session.session_id,
            salt=secrets.token_bytes(SALT_BYTES),
        )
