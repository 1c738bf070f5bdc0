"""An import that the provisioner cuts while the client still sends: the reason arrives, and nobody
reads the client's body any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider

from chassis.errors import Unavailable
from chassis.rpc_channel import open_channel
from fairlead.workspace.v1 import workspace_pb2, workspace_pb2_grpc
from signalling.host import Host
from signalling.neighbour_channels import ChannelCache
from signalling.snapshot import Source
from signalling.workspace_neighbours import GrpcWorkspaces

pytestmark = pytest.mark.asyncio


class Cutting(workspace_pb2_grpc.WorkspaceServiceServicer):
    """Ends each import after its first frame."""

    async def ImportSnapshot(
        self,
        request_iterator: AsyncIterator[workspace_pb2.ImportSnapshotRequest],
        context: grpc.aio.ServicerContext[
            workspace_pb2.ImportSnapshotRequest, workspace_pb2.ImportSnapshotResponse
        ],
    ) -> workspace_pb2.ImportSnapshotResponse:
        await anext(aiter(request_iterator))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        raise AssertionError("abort raises")


async def test_a_cut_import_is_unavailable_and_lets_go_of_the_body(tmp_path: Path) -> None:
    server = grpc.aio.server()
    workspace_pb2_grpc.add_WorkspaceServiceServicer_to_server(
        Cutting(),  # type: ignore[abstract]
        server,
    )
    address = f"unix:{tmp_path}/cut.sock"
    server.add_insecure_port(address)
    await server.start()
    more = asyncio.Event()

    async def body() -> AsyncGenerator[bytes, None]:
        yield b"x"
        await more.wait()  # the client has not sent the rest yet

    def opened(target: str) -> grpc.aio.Channel:
        return open_channel(target, tracer_provider=TracerProvider())

    try:
        async with ChannelCache(open_channel=opened) as channels, aclosing(body()) as chunks:
            with pytest.raises(Unavailable):
                await GrpcWorkspaces(channels=channels).import_snapshot(
                    Host(host_id="h", workspace_address=address, sandbox_address=""),
                    tenant="acme",
                    source=Source(project="p", commit="1" * 40),
                    tips=(),
                    chunks=chunks,
                    tips_only=False,
                    order=None,
                )
    finally:
        await server.stop(None)
