"""The two rooms of a fake host on the wire: gRPC servicers over the fakes of `tests.fakes.mesh`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import grpc

from fairlead.execution.v1 import execution_pb2, execution_pb2_grpc
from fairlead.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from fairlead.workspace.v1 import workspace_pb2, workspace_pb2_grpc
from signalling.batch_messages import from_batch, to_outcome
from signalling.execution_messages import from_command, to_execution, to_frame
from signalling.gateway import Meeting
from signalling.sandbox_messages import from_network, to_sandbox, to_view
from signalling.sandbox_messages import from_order as from_sandbox_order
from signalling.snapshot import Miss
from signalling.snapshot_messages import from_source, from_tip, to_miss_reason, to_snapshot
from signalling.terminal_messages import from_opening, from_size, from_typed, to_attached
from signalling.workspace import Workspace
from signalling.workspace_messages import from_fork, from_order, to_workspace
from tests.fakes.mesh import HOST
from tests.fakes.worker import FakeWorker
from tests.fakes.workspaces import FakeWorkspaces

WORKSPACE_SERVICE = workspace_pb2.DESCRIPTOR.services_by_name["WorkspaceService"].full_name
SANDBOX_SERVICE = sandbox_pb2.DESCRIPTOR.services_by_name["SandboxService"].full_name


class WorkspaceServer(workspace_pb2_grpc.WorkspaceServiceServicer):
    """Serves a fake provisioner."""

    def __init__(self, *, workspaces: FakeWorkspaces) -> None:
        self._workspaces = workspaces
        self.largest_chunk = 0
        self.overlays: list[bool] = []

    def register(self, server: grpc.aio.Server) -> None:
        """Add it to a server."""
        workspace_pb2_grpc.add_WorkspaceServiceServicer_to_server(self, server)

    async def MaterializeWorkspace(
        self, request: workspace_pb2.MaterializeWorkspaceRequest, context: object
    ) -> workspace_pb2.MaterializeWorkspaceResponse:
        self.overlays.append(request.overlay)
        made = await self._workspaces.materialize(
            HOST, tenant=request.tenant, order=from_order(request, from_source(request.source))
        )
        return _outcome(made, request.tenant)

    async def ImportSnapshot(
        self,
        request_iterator: AsyncIterator[workspace_pb2.ImportSnapshotRequest],
        context: object,
    ) -> workspace_pb2.ImportSnapshotResponse:
        first = (await anext(aiter(request_iterator))).open

        async def chunks() -> AsyncIterator[bytes]:
            async for frame in request_iterator:
                self.largest_chunk = max(self.largest_chunk, len(frame.chunk))
                yield frame.chunk

        source = from_source(first.source)
        order = from_order(first.materialize, source) if first.HasField("materialize") else None
        try:
            imported = await self._workspaces.import_snapshot(
                HOST,
                tenant=first.tenant,
                source=source,
                tips=[from_tip(tip) for tip in first.tips],
                chunks=chunks(),
                tips_only=first.tips_only,
                order=order,
            )
        finally:
            # As `signalling.snapshot_grpc_api` says: a client that still writes loses the status.
            async for _ in request_iterator:
                pass
        return workspace_pb2.ImportSnapshotResponse(
            snapshot=to_snapshot(imported.snapshot),
            materialized=None if imported.made is None else _outcome(imported.made, first.tenant),
        )

    async def GetWorkspace(
        self, request: workspace_pb2.GetWorkspaceRequest, context: object
    ) -> workspace_pb2.GetWorkspaceResponse:
        found = await self._workspaces.get(
            HOST,
            tenant=request.tenant,
            workspace_id=request.workspace_id,
            count_changes=request.count_changes,
        )
        return workspace_pb2.GetWorkspaceResponse(workspace=to_workspace(found, request.tenant))

    async def ListWorkspaces(
        self, request: workspace_pb2.ListWorkspacesRequest, context: object
    ) -> workspace_pb2.ListWorkspacesResponse:
        found, more = await self._workspaces.list(
            HOST, tenant=request.tenant, size=request.page_size, after=request.page_token
        )
        return workspace_pb2.ListWorkspacesResponse(
            workspaces=[to_workspace(each, request.tenant) for each in found],
            next_page_token=found[-1].workspace_id if more else "",
        )

    async def RenewWorkspace(
        self, request: workspace_pb2.RenewWorkspaceRequest, context: object
    ) -> workspace_pb2.RenewWorkspaceResponse:
        renewed = await self._workspaces.renew(
            HOST,
            tenant=request.tenant,
            workspace_id=request.workspace_id,
            lease=request.lease.ToTimedelta(),
        )
        return workspace_pb2.RenewWorkspaceResponse(workspace=to_workspace(renewed, request.tenant))

    async def ForkWorkspace(
        self, request: workspace_pb2.ForkWorkspaceRequest, context: object
    ) -> workspace_pb2.ForkWorkspaceResponse:
        forked = await self._workspaces.fork(
            HOST,
            tenant=request.tenant,
            workspace_id=request.workspace_id,
            order=from_fork(request),
        )
        return workspace_pb2.ForkWorkspaceResponse(workspace=to_workspace(forked, request.tenant))

    async def RenameWorkspace(
        self, request: workspace_pb2.RenameWorkspaceRequest, context: object
    ) -> workspace_pb2.RenameWorkspaceResponse:
        renamed = await self._workspaces.rename(
            HOST, tenant=request.tenant, workspace_id=request.workspace_id, name=request.name
        )
        return workspace_pb2.RenameWorkspaceResponse(
            workspace=to_workspace(renamed, request.tenant)
        )

    async def ReleaseWorkspace(
        self, request: workspace_pb2.ReleaseWorkspaceRequest, context: object
    ) -> workspace_pb2.ReleaseWorkspaceResponse:
        released = await self._workspaces.release(
            HOST,
            tenant=request.tenant,
            key=request.idempotency_key,
            workspace_id=request.workspace_id,
            checked=request.checked,
        )
        return workspace_pb2.ReleaseWorkspaceResponse(released=released)


def _outcome(made: Workspace | Miss, tenant: str) -> workspace_pb2.MaterializeWorkspaceResponse:
    if isinstance(made, Miss):
        return workspace_pb2.MaterializeWorkspaceResponse(
            miss=workspace_pb2.Miss(
                reason=to_miss_reason(made.reason), wanted=made.wanted, tips=made.tips
            )
        )
    return workspace_pb2.MaterializeWorkspaceResponse(workspace=to_workspace(made, tenant))


class SandboxServer(
    sandbox_pb2_grpc.SandboxServiceServicer, execution_pb2_grpc.ExecutionServiceServicer
):
    """Serves a fake worker."""

    def __init__(self, *, worker: FakeWorker) -> None:
        self._worker = worker

    def register(self, server: grpc.aio.Server) -> None:
        """Add both of its services to a server."""
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(self, server)
        execution_pb2_grpc.add_ExecutionServiceServicer_to_server(self, server)

    async def CreateSandbox(
        self, request: sandbox_pb2.CreateSandboxRequest, context: object
    ) -> sandbox_pb2.CreateSandboxResponse:
        made = await self._worker.create(
            HOST,
            tenant=request.tenant,
            order=replace(from_sandbox_order(request), launch_id=request.launch_id),
        )
        return sandbox_pb2.CreateSandboxResponse(sandbox=to_sandbox(made, request.tenant))

    async def GetSandbox(
        self, request: sandbox_pb2.GetSandboxRequest, context: object
    ) -> sandbox_pb2.GetSandboxResponse:
        found = await self._worker.get(HOST, tenant=request.tenant, sandbox_id=request.sandbox_id)
        return sandbox_pb2.GetSandboxResponse(sandbox=to_sandbox(found, request.tenant))

    async def ListSandboxes(
        self, request: sandbox_pb2.ListSandboxesRequest, context: object
    ) -> sandbox_pb2.ListSandboxesResponse:
        found, more = await self._worker.list(
            HOST, tenant=request.tenant, size=request.page_size, after=request.page_token
        )
        return sandbox_pb2.ListSandboxesResponse(
            sandboxes=[to_sandbox(each, request.tenant) for each in found],
            next_page_token=found[-1].sandbox_id if more else "",
        )

    async def BindWorkspace(
        self, request: sandbox_pb2.BindWorkspaceRequest, context: object
    ) -> sandbox_pb2.BindWorkspaceResponse:
        bound = await self._worker.bind(
            HOST,
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            workspace_id=request.workspace_id,
        )
        return sandbox_pb2.BindWorkspaceResponse(sandbox=to_sandbox(bound, request.tenant))

    async def RenewSandbox(
        self, request: sandbox_pb2.RenewSandboxRequest, context: object
    ) -> sandbox_pb2.RenewSandboxResponse:
        renewed = await self._worker.renew(
            HOST,
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            lease=request.lease.ToTimedelta(),
        )
        return sandbox_pb2.RenewSandboxResponse(sandbox=to_sandbox(renewed, request.tenant))

    async def SetNetworkPolicy(
        self, request: sandbox_pb2.SetNetworkPolicyRequest, context: object
    ) -> sandbox_pb2.SetNetworkPolicyResponse:
        changed = await self._worker.set_network(
            HOST,
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            network=from_network(request.network),
        )
        return sandbox_pb2.SetNetworkPolicyResponse(sandbox=to_sandbox(changed, request.tenant))

    async def GetNetwork(
        self, request: sandbox_pb2.GetNetworkRequest, context: object
    ) -> sandbox_pb2.GetNetworkResponse:
        found = await self._worker.network(
            HOST, tenant=request.tenant, sandbox_id=request.sandbox_id
        )
        return to_view(found)

    async def OpenPort(
        self, request: sandbox_pb2.OpenPortRequest, context: object
    ) -> sandbox_pb2.OpenPortResponse:
        await self._worker.open_port(
            HOST,
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            port=request.port,
            meeting=Meeting(request.address, request.ticket, request.execution_id),
        )
        return sandbox_pb2.OpenPortResponse()

    async def ReleaseSandbox(
        self, request: sandbox_pb2.ReleaseSandboxRequest, context: object
    ) -> sandbox_pb2.ReleaseSandboxResponse:
        released = await self._worker.release(
            HOST,
            tenant=request.tenant,
            key=request.idempotency_key,
            sandbox_id=request.sandbox_id,
        )
        return sandbox_pb2.ReleaseSandboxResponse(released=released)

    async def StartExecution(
        self, request: execution_pb2.StartExecutionRequest, context: object
    ) -> execution_pb2.StartExecutionResponse:
        execution = await self._worker.start(
            HOST,
            tenant=request.tenant,
            key=request.idempotency_key,
            sandbox_id=request.sandbox_id,
            command=from_command(request.command),
        )
        return execution_pb2.StartExecutionResponse(execution=to_execution(execution))

    async def RunExecution(
        self, request: execution_pb2.RunExecutionRequest, context: object
    ) -> AsyncIterator[execution_pb2.RunExecutionResponse]:
        async with self._worker.run(
            HOST,
            tenant=request.start.tenant,
            key=request.start.idempotency_key,
            sandbox_id=request.start.sandbox_id,
            command=from_command(request.start.command),
            after=request.after_sequence,
        ) as (execution, frames):
            yield execution_pb2.RunExecutionResponse(frame=to_frame(execution))
            async for frame in frames:
                yield execution_pb2.RunExecutionResponse(frame=to_frame(frame))

    async def GetExecution(
        self, request: execution_pb2.GetExecutionRequest, context: object
    ) -> execution_pb2.GetExecutionResponse:
        execution = await self._worker.execution(
            HOST, tenant=request.tenant, execution_id=request.execution_id
        )
        return execution_pb2.GetExecutionResponse(execution=to_execution(execution))

    async def ListExecutions(
        self, request: execution_pb2.ListExecutionsRequest, context: object
    ) -> execution_pb2.ListExecutionsResponse:
        found, token = await self._worker.executions(
            HOST,
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            size=request.page_size,
            after=request.page_token,
        )
        return execution_pb2.ListExecutionsResponse(
            executions=[to_execution(each) for each in found], next_page_token=token
        )

    async def WatchOutput(
        self, request: execution_pb2.WatchOutputRequest, context: object
    ) -> AsyncIterator[execution_pb2.WatchOutputResponse]:
        async with self._worker.watch(
            HOST,
            tenant=request.tenant,
            execution_id=request.execution_id,
            after=request.after_sequence,
        ) as frames:
            async for frame in frames:
                yield to_frame(frame)

    async def WriteStdin(
        self, request: execution_pb2.WriteStdinRequest, context: object
    ) -> execution_pb2.WriteStdinResponse:
        offset = await self._worker.write_stdin(
            HOST,
            tenant=request.tenant,
            execution_id=request.execution_id,
            offset=request.offset,
            content=request.content,
            close=request.close,
        )
        return execution_pb2.WriteStdinResponse(offset=offset)

    async def SignalExecution(
        self, request: execution_pb2.SignalExecutionRequest, context: object
    ) -> execution_pb2.SignalExecutionResponse:
        execution = await self._worker.signal(
            HOST,
            tenant=request.tenant,
            execution_id=request.execution_id,
            signal=request.signal,
        )
        return execution_pb2.SignalExecutionResponse(execution=to_execution(execution))

    async def RunBatch(
        self, request: execution_pb2.RunBatchRequest, context: object
    ) -> execution_pb2.RunBatchResponse:
        outcomes = await self._worker.run_batch(
            HOST,
            tenant=request.tenant,
            key=request.idempotency_key,
            sandbox_id=request.sandbox_id,
            batch=from_batch(request),
        )
        return execution_pb2.RunBatchResponse(outcomes=map(to_outcome, outcomes))

    async def ResizeExecution(
        self, request: execution_pb2.ResizeExecutionRequest, context: object
    ) -> execution_pb2.ResizeExecutionResponse:
        execution = await self._worker.resize(
            HOST,
            tenant=request.tenant,
            execution_id=request.execution_id,
            size=from_size(request.size),
        )
        return execution_pb2.ResizeExecutionResponse(execution=to_execution(execution))

    async def AttachTerminal(
        self,
        request_iterator: AsyncIterator[execution_pb2.AttachTerminalRequest],
        context: object,
    ) -> AsyncIterator[execution_pb2.AttachTerminalResponse]:
        execution_id, opening = await from_opening(request_iterator)
        async with self._worker.attach(
            HOST,
            tenant="",
            execution_id=execution_id,
            opening=opening,
            typed=from_typed(request_iterator),
        ) as frames:
            async for frame in frames:
                yield to_attached(frame)
