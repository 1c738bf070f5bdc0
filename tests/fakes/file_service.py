"""A worker's FileService for one directory: everything real but the sandbox around it."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import grpc
from opentelemetry.sdk.trace import TracerProvider

from chassis.rpc_channel import open_channel
from chassis.rpc_server import serve_grpc
from sandbox_worker.errors import SandboxNotFound
from sandbox_worker.execution import ExitReason
from sandbox_worker.files import Files
from sandbox_worker.held_sandbox import HeldSandbox, SandboxOrder
from sandbox_worker.ports import Enclosure
from sandbox_worker.sandbox import Limits, Sandbox, SandboxState
from sandbox_worker.wire import file_api
from sandbox_worker.wire.file_api import FileServicer
from signalling.file_neighbours import GrpcFiles
from signalling.file_ports import SandboxFiles
from signalling.host import Host
from signalling.launch_errors import SandboxNotFound as NotFoundByCaller
from signalling.neighbour_channels import ChannelCache
from tests.fakes.clock import START
from tests.fakes.isolation import ScriptedEnclosure

SANDBOX = "sbx_" + "a" * 26
TENANT = "default"


class OneSandbox:
    """One sandbox, whose files are those of a directory."""

    def __init__(self, *, root: Path) -> None:
        self.root = root
        self.enclosure = ScriptedEnclosure(sandbox_id=SANDBOX, limits=Limits(), home=root)
        self.held = HeldSandbox(
            sandbox=Sandbox(
                sandbox_id=SANDBOX,
                tenant=TENANT,
                state=SandboxState.PROVISIONED,
                isolation="process",
                limits=Limits(),
                host_id="hst_" + "a" * 26,
                workspace_id="",
                created_at=START,
                expires_at=START + timedelta(hours=1),
            ),
            order=SandboxOrder(),
            ends_at=1e9,
            enclosure=self.enclosure,
        )

    def enter(self, tenant: str, sandbox_id: str) -> tuple[HeldSandbox, Enclosure]:
        """Return it, to its tenant only."""
        if (tenant, sandbox_id) != (TENANT, SANDBOX) or self.held.ending is not None:
            raise SandboxNotFound(sandbox_id)
        return self.held, self.enclosure

    @property
    def agents(self) -> Sequence[subprocess.Popen[bytes]]:
        """The agents that were started."""
        return self.enclosure.agents.processes

    async def release(self) -> None:
        """End it."""
        self.held.ending = ExitReason.RELEASED
        self.held.sandbox = replace(self.held.sandbox, state=SandboxState.RELEASED)
        await self.enclosure.destroy()


class HostFiles:
    """Signalling's way to the files of that sandbox."""

    def __init__(self, *, files: GrpcFiles, address: str) -> None:
        self._files = files
        self._host = Host("hst_" + "a" * 26, "unix:/none", address, ("process",), 1, 8)

    async def of(self, tenant: str, sandbox_id: str) -> SandboxFiles:
        """Return the files of the sandbox, to its tenant only."""
        if (tenant, sandbox_id) != (TENANT, SANDBOX):
            raise NotFoundByCaller(sandbox_id)
        return self._files.of(self._host, tenant=tenant, sandbox_id=sandbox_id)


@asynccontextmanager
async def file_service(
    sandbox: OneSandbox, *, bind: str, silence: float = 20.0
) -> AsyncIterator[HostFiles]:
    """Serve the files of a sandbox on `bind`, and dial it."""
    servicer = FileServicer(files=Files(sandboxes=sandbox, silence=silence, wait=silence))
    provider = TracerProvider()

    def open_to(address: str) -> grpc.aio.Channel:
        return open_channel(address, tracer_provider=provider)

    async with (
        serve_grpc(
            bind=bind,
            register=servicer.register,
            services=(file_api.SERVICE,),
            tracer_provider=provider,
            grace_seconds=0.1,
        ) as server,
        ChannelCache(open_channel=open_to) as channels,
    ):
        try:
            yield HostFiles(files=GrpcFiles(channels=channels), address=server.address)
        finally:
            await sandbox.enclosure.destroy()
