"""LaunchService for clients: proto in, launcher, proto out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from fairlead.launch.v1 import launch_pb2 as pb
from fairlead.launch.v1 import launch_pb2_grpc as rpc
from signalling.caller import current_tenant
from signalling.execution_messages import from_duration
from signalling.launch_messages import from_launch_request, to_event, to_launch, to_span
from signalling.launcher import Launcher

LAUNCH_SERVICE = pb.DESCRIPTOR.services_by_name["LaunchService"].full_name


class LaunchApi(rpc.LaunchServiceServicer):
    """Serves LaunchService."""

    def __init__(self, *, launcher: Launcher) -> None:
        self._launcher = launcher

    async def Launch(
        self,
        request: pb.LaunchRequest,
        context: grpc.aio.ServicerContext[pb.LaunchRequest, pb.LaunchResponse],
    ) -> AsyncIterator[pb.LaunchResponse]:
        tenant = current_tenant()
        launch = await self._launcher.start(
            tenant, from_launch_request(request), request.idempotency_key or None
        )
        async with aclosing(self._launcher.watch(tenant, launch.launch_id, None)) as events:
            async for event in events:
                yield pb.LaunchResponse(event=to_event(event))

    async def WatchLaunch(
        self,
        request: pb.WatchLaunchRequest,
        context: grpc.aio.ServicerContext[pb.WatchLaunchRequest, pb.WatchLaunchResponse],
    ) -> AsyncIterator[pb.WatchLaunchResponse]:
        stream = self._launcher.watch(current_tenant(), request.launch_id, request.cursor or None)
        async with aclosing(stream) as events:
            async for event in events:
                yield pb.WatchLaunchResponse(event=to_event(event))

    async def GetLaunch(
        self,
        request: pb.GetLaunchRequest,
        context: grpc.aio.ServicerContext[pb.GetLaunchRequest, pb.GetLaunchResponse],
    ) -> pb.GetLaunchResponse:
        launch = await self._launcher.get(current_tenant(), request.launch_id)
        return pb.GetLaunchResponse(launch=to_launch(launch))

    async def ListLaunches(
        self,
        request: pb.ListLaunchesRequest,
        context: grpc.aio.ServicerContext[pb.ListLaunchesRequest, pb.ListLaunchesResponse],
    ) -> pb.ListLaunchesResponse:
        launches, following = await self._launcher.list(
            current_tenant(), request.page_size, request.page_token
        )
        return pb.ListLaunchesResponse(
            launches=[to_launch(launch) for launch in launches], next_page_token=following
        )

    async def CancelLaunch(
        self,
        request: pb.CancelLaunchRequest,
        context: grpc.aio.ServicerContext[pb.CancelLaunchRequest, pb.CancelLaunchResponse],
    ) -> pb.CancelLaunchResponse:
        launch = await self._launcher.cancel(current_tenant(), request.launch_id)
        return pb.CancelLaunchResponse(launch=to_launch(launch))

    async def RenewLaunch(
        self,
        request: pb.RenewLaunchRequest,
        context: grpc.aio.ServicerContext[pb.RenewLaunchRequest, pb.RenewLaunchResponse],
    ) -> pb.RenewLaunchResponse:
        lease = from_duration("lease", request.lease) if request.HasField("lease") else None
        launch = await self._launcher.renew(current_tenant(), request.launch_id, lease)
        return pb.RenewLaunchResponse(launch=to_launch(launch))

    async def GetLaunchTrace(
        self,
        request: pb.GetLaunchTraceRequest,
        context: grpc.aio.ServicerContext[pb.GetLaunchTraceRequest, pb.GetLaunchTraceResponse],
    ) -> pb.GetLaunchTraceResponse:
        trace_id, spans = await self._launcher.trace(current_tenant(), request.launch_id)
        return pb.GetLaunchTraceResponse(trace_id=trace_id, spans=[to_span(span) for span in spans])
