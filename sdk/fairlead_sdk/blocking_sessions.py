"""Sessions for the blocking client, call by call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fairlead_sdk.loop_thread import LoopThread
from fairlead_sdk.session_records import OpenedSession, SessionClosed, SessionRecord
from fairlead_sdk.sessions import AsyncSessions

if TYPE_CHECKING:
    from fairlead_sdk.forwarding import LocalPort
    from fairlead_sdk.peer_session import AsyncSession


class Session:
    """An open session; `Sessions.open` makes it."""

    def __init__(self, *, loop: LoopThread, session: AsyncSession) -> None:
        self.session_id = session.session_id
        self.mode = session.mode
        self.core_name = session.core_name
        self._loop = loop
        self._session = session

    @property
    def state(self) -> str:
        """How far the negotiation is; see `AsyncSession.state`."""
        return self._session.state

    @property
    def round(self) -> int:
        """The round under way, from 1; each restart is one more."""
        return self._session.round

    @property
    def closed(self) -> SessionClosed | None:
        """Why the mesh has closed it, once it has said so."""
        return self._session.closed

    @property
    def is_connected(self) -> bool:
        """Say whether channels carry now."""
        return self._session.is_connected

    @property
    def is_lost(self) -> bool:
        """Say whether it is over."""
        return self._session.is_lost

    def wait_lost(self) -> None:
        """Wait until it is over."""
        self._loop.run(self._session.wait_lost())

    def wait_told(self, seconds: float) -> SessionClosed | None:
        """Wait for the mesh to say why it is closed, at most so long; return that."""
        return self._loop.run(self._session.wait_told(seconds))

    def restart(self, seconds: float | None = None) -> None:
        """Negotiate another path (ICE restart) while the old one goes on."""
        self._loop.run(self._session.restart(seconds))

    @contextmanager
    def forward(
        self, *, remote_port: int, local_port: int = 0, remote_host: str = ""
    ) -> Iterator[LocalPort]:
        """Lead a local port (0: a free one) to a port inside the sandbox, or of a host that the
        gateway dials.
        """
        context = self._session.forward(
            remote_port=remote_port, local_port=local_port, remote_host=remote_host
        )
        with self._loop.entered(context) as local:
            yield local


class Sessions:
    """The caller's sessions."""

    def __init__(self, *, loop: LoopThread, sessions: AsyncSessions) -> None:
        self._loop = loop
        self._sessions = sessions

    @contextmanager
    def open(
        self,
        launch_id: str,
        *,
        mode: str = "",
        ice_policy: str = "all",
        connect_seconds: float | None = None,
        seal_secret: bytes = b"",
    ) -> Iterator[Session]:
        """Open a session and hold it to the end of the block; see `AsyncSessions.open`."""
        context = self._sessions.open(
            launch_id,
            mode=mode,
            ice_policy=ice_policy,
            connect_seconds=connect_seconds,
            seal_secret=seal_secret,
        )
        with self._loop.entered(context) as session:
            yield Session(loop=self._loop, session=session)

    def create(
        self, launch_id: str, *, mode: str, ice_policy: str = "all", key: str = ""
    ) -> OpenedSession:
        """Open a session and do nothing more; see `AsyncSessions.create`."""
        creating = self._sessions.create(launch_id, mode=mode, ice_policy=ice_policy, key=key)
        return self._loop.run(creating)

    def get(self, session_id: str) -> SessionRecord:
        """Read a session."""
        return self._loop.run(self._sessions.get(session_id))

    def list(self, *, limit: int = 100, tenant: str = "") -> tuple[SessionRecord, ...]:
        """List sessions that are not closed; see `AsyncSessions.list`."""
        return self._loop.run(self._sessions.list(limit=limit, tenant=tenant))

    def close(self, session_id: str, *, as_admin: bool = False, message: str = "") -> SessionRecord:
        """Close a session and every channel in it; see `AsyncSessions.close`."""
        closing = self._sessions.close(session_id, as_admin=as_admin, message=message)
        return self._loop.run(closing)
