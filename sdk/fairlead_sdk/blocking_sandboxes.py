"""Sandboxes for the blocking client, call by call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from fairlead_sdk.blocking_commands import Commands
from fairlead_sdk.blocking_files import Files
from fairlead_sdk.blocking_terminals import Pty
from fairlead_sdk.isolating import Isolating
from fairlead_sdk.loop_thread import LoopThread
from fairlead_sdk.network_records import NetworkRecord
from fairlead_sdk.sandbox_records import SandboxRecord
from fairlead_sdk.sandboxes import AsyncSandbox, AsyncSandboxes

if TYPE_CHECKING:
    from fairlead_sdk.forwarding import LocalPort


class Sandbox(Isolating):
    """A sandbox. As a context manager it is released at the end of the block."""

    def __init__(self, *, loop: LoopThread, sandbox: AsyncSandbox) -> None:
        self._loop = loop
        self._sandbox = self._isolating = sandbox
        self.commands = Commands(loop=loop, commands=sandbox.commands)
        self.files = Files(loop=loop, files=sandbox.files)
        self.pty = Pty(loop=loop, pty=sandbox.pty)

    @property
    def record(self) -> SandboxRecord:
        """The sandbox as it was last seen."""
        return self._sandbox.record

    @property
    def sandbox_id(self) -> str:
        """Id of the sandbox."""
        return self._sandbox.sandbox_id

    def renew(self, *, lease: float | None = None) -> SandboxRecord:
        """Hold it for `lease` seconds from now, 30 minutes when absent."""
        return self._loop.run(self._sandbox.renew(lease=lease))

    def network(self) -> NetworkRecord:
        """Return what it reaches, and what it lately tried to reach."""
        return self._loop.run(self._sandbox.network())

    def set_network(self, network: str, *, allow: Sequence[str] = ()) -> SandboxRecord:
        """Let another policy hold from now on; connections that it does not allow are cut."""
        return self._loop.run(self._sandbox.set_network(network, allow=allow))

    def release(self) -> bool:
        """Give it back; says whether this call did it."""
        return self._loop.run(self._sandbox.release())

    @contextmanager
    def forward(self, *, remote_port: int, local_port: int = 0) -> Iterator[LocalPort]:
        """Lead a local port (0: a free one) to a port inside the sandbox."""
        with self._loop.entered(
            self._sandbox.forward(remote_port=remote_port, local_port=local_port)
        ) as local:
            yield local

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.run(self._sandbox.__aexit__(kind, error, traceback))


class Sandboxes:
    """The caller's sandboxes; see `AsyncSandboxes` for what each call raises."""

    def __init__(self, *, loop: LoopThread, sandboxes: AsyncSandboxes) -> None:
        self._loop = loop
        self._sandboxes = sandboxes

    def create(
        self,
        *,
        isolation: str = "",
        profile: str = "",
        limits: Mapping[str, float] | None = None,
        network: str = "",
        allow: Sequence[str] = (),
        lease: float | None = None,
        workspace_id: str = "",
        host_id: str = "",
    ) -> Sandbox:
        """Make a sandbox, bound to a workspace when one is named; see `AsyncSandboxes.create`."""
        made = self._loop.run(
            self._sandboxes.create(
                isolation=isolation,
                profile=profile,
                limits=limits,
                network=network,
                allow=allow,
                lease=lease,
                workspace_id=workspace_id,
                host_id=host_id,
            )
        )
        return Sandbox(loop=self._loop, sandbox=made)

    def get(self, sandbox_id: str) -> Sandbox:
        """Return a sandbox that is there."""
        return Sandbox(loop=self._loop, sandbox=self._loop.run(self._sandboxes.get(sandbox_id)))

    def list(
        self, *, limit: int = 100, on_unanswered: Callable[[str], None] | None = None
    ) -> tuple[SandboxRecord, ...]:
        """List sandboxes, by id; `on_unanswered` hears of each host that did not answer."""
        return self._loop.run(self._sandboxes.list(limit=limit, on_unanswered=on_unanswered))

    def renew(self, sandbox_id: str, *, lease: float | None = None) -> SandboxRecord:
        """Hold it for `lease` seconds from now, 30 minutes when absent."""
        return self._loop.run(self._sandboxes.renew(sandbox_id, lease=lease))

    def network(self, sandbox_id: str) -> NetworkRecord:
        """Return what a sandbox reaches, and what it lately tried to reach."""
        return self._loop.run(self._sandboxes.network(sandbox_id))

    def set_network(
        self, sandbox_id: str, network: str, *, allow: Sequence[str] = ()
    ) -> SandboxRecord:
        """Let another policy hold from now on; connections that it does not allow are cut."""
        return self._loop.run(self._sandboxes.set_network(sandbox_id, network, allow=allow))

    def release(self, sandbox_id: str) -> bool:
        """Give a sandbox back; says whether this call did it."""
        return self._loop.run(self._sandboxes.release(sandbox_id))
