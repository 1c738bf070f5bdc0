"""LaunchService, ExecutionService and SnapshotService over real gRPC and a real Redis, with a fake
host on the wire.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from opentelemetry.sdk.trace import ReadableSpan
from redis.asyncio import Redis

from chassis.errors import FailedPrecondition, FairleadError, InvalidArgument
from chassis.rpc_errors import neighbour_errors
from fairlead.execution.v1 import execution_pb2
from fairlead.file.v1 import file_pb2
from fairlead.launch.v1 import launch_pb2
from fairlead.snapshot.v1 import snapshot_pb2
from signalling.execution import OnFull
from signalling.redis_hosts import RedisHosts
from tests.contract.wire.launch_mesh import Mesh, running_mesh, wanted
from tests.eventually import eventually
from tests.fakes.launch_room import COMMIT, OFFER, echo
from tests.fakes.mesh import HOST
from tests.fakes.sessions import MEETING


@pytest_asyncio.fixture
async def mesh(redis: Redis) -> AsyncIterator[Mesh]:
    with tempfile.TemporaryDirectory(prefix="flw-") as directory:
        async with running_mesh(redis, directory) as running:
            yield running


def kinds(events: Sequence[launch_pb2.LaunchEvent]) -> list[str]:
    return [event.WhichOneof("event") or "" for event in events]


@pytest.mark.asyncio
async def test_a_launch_streams_its_events_to_the_end(mesh: Mesh) -> None:
    mesh.worker.script = echo(b"\x00\xff", b"two", code=3)
    events = await mesh.launch(wanted("true", offer=OFFER, branch="try"))
    assert kinds(events)[0] == "snapshot"
    assert kinds(events)[-1] == "exited"
    assert [event.output.content for event in events if event.HasField("output")] == [
        b"\x00\xff",
        b"two",
    ]
    assert sum(event.HasField("answer") for event in events) == 1
    exited = events[-1].exited
    assert (exited.exit.code, exited.HasField("changed_files"), exited.discarded) == (
        3,
        True,
        False,
    )
    launch_id = events[0].snapshot.launch_id
    answer = await mesh.launches.CancelLaunch(launch_pb2.CancelLaunchRequest(launch_id=launch_id))
    assert answer.launch.state == launch_pb2.LAUNCH_STATE_EXITED
    assert answer.launch.HasField("released_at")
    assert answer.launch.branch == "try"
    assert not mesh.worker.held
    assert not mesh.workspaces.held
    assert not mesh.channels.open


@pytest.mark.asyncio
async def test_a_watcher_resumes_by_cursor(mesh: Mesh) -> None:
    mesh.worker.script = echo(b"1", b"2", b"3")
    events = await mesh.launch(wanted("true", keep=True))
    launch_id = events[0].snapshot.launch_id
    for number, event in enumerate(events):
        call = mesh.launches.WatchLaunch(
            launch_pb2.WatchLaunchRequest(launch_id=launch_id, cursor=event.cursor)
        )
        rest = [answer.event async for answer in call]
        assert kinds(rest)[0] == "snapshot"
        assert rest[1:] == events[number + 1 :]
    with pytest.raises(InvalidArgument) as raised, neighbour_errors("signalling"):
        async for _ in mesh.launches.WatchLaunch(
            launch_pb2.WatchLaunchRequest(launch_id=launch_id, cursor="nonsense")
        ):
            pass
    assert raised.value.reason == "cursor_invalid"


@pytest.mark.asyncio
async def test_a_launch_that_is_left_goes_on(mesh: Mesh) -> None:
    launch_id, _ = await mesh.until("step", wanted("true"))
    seen = []
    call = mesh.launches.WatchLaunch(launch_pb2.WatchLaunchRequest(launch_id=launch_id))
    async for answer in call:
        seen.append(answer.event)
        if answer.event.step.step == launch_pb2.STEP_EXECUTION and mesh.worker.programs:
            mesh.worker.finish(*mesh.worker.programs)
    assert kinds(seen)[-1] == "exited"


@pytest.mark.asyncio
async def test_an_upload_is_streamed_to_the_host(mesh: Mesh) -> None:
    mesh.workspaces.known.clear()
    mesh.worker.script = echo()
    launch_id, event = await mesh.until("miss", wanted("true", keep=True))
    assert list(event.miss.wanted) == [COMMIT]
    pack = [b"a" * 700_000, b"b" * 5, b"c" * 1_000_000]

    async def frames(first: bytes = b"") -> AsyncIterator[snapshot_pb2.UploadSnapshotRequest]:
        if not first:
            yield snapshot_pb2.UploadSnapshotRequest(
                open=snapshot_pb2.OpenUpload(
                    upload_token=event.miss.upload_token,
                    tips=[snapshot_pb2.Tip(ref="refs/heads/main", commit=COMMIT)],
                )
            )
        for chunk in pack:
            yield snapshot_pb2.UploadSnapshotRequest(chunk=chunk)

    answer = await mesh.snapshots.UploadSnapshot(frames())
    assert answer.snapshot.received_bytes == 1_700_005
    assert mesh.workspaces.received == b"".join(pack)
    assert mesh.provisioner.largest_chunk <= 1024 * 1024
    call = mesh.launches.WatchLaunch(launch_pb2.WatchLaunchRequest(launch_id=launch_id))
    assert kinds([answer.event async for answer in call])[-1] == "exited"
    with pytest.raises(FairleadError) as raised, neighbour_errors("signalling"):
        await mesh.snapshots.UploadSnapshot(frames())
    assert raised.value.reason == "upload_token_invalid"
    with pytest.raises(InvalidArgument) as raised, neighbour_errors("signalling"):
        await mesh.snapshots.UploadSnapshot(frames(b"no open frame"))
    assert raised.value.reason == "upload_frames_invalid"


@pytest.mark.asyncio
async def test_what_the_host_says_of_a_pack_reaches_the_uploader(mesh: Mesh) -> None:
    mesh.workspaces.known.clear()
    mesh.faults.refuse(
        "workspaces.import:before",
        FailedPrecondition("It is no pack.", reason="pack_invalid", remedy="Send one."),
        once=True,
    )
    launch_id, event = await mesh.until("miss", wanted("true"))

    async def frames() -> AsyncIterator[snapshot_pb2.UploadSnapshotRequest]:
        yield snapshot_pb2.UploadSnapshotRequest(
            open=snapshot_pb2.OpenUpload(upload_token=event.miss.upload_token)
        )
        for _ in range(50):
            yield snapshot_pb2.UploadSnapshotRequest(chunk=b"x" * 65536)

    with pytest.raises(FailedPrecondition) as raised, neighbour_errors("signalling"):
        await mesh.snapshots.UploadSnapshot(frames())
    assert (raised.value.reason, raised.value.remedy) == ("pack_invalid", "Send one.")
    assert (await mesh.snapshots.UploadSnapshot(frames())).snapshot.received_bytes == 50 * 65536
    await mesh.launches.CancelLaunch(launch_pb2.CancelLaunchRequest(launch_id=launch_id))


@pytest.mark.asyncio
async def test_a_batch_and_a_gap_go_through(mesh: Mesh) -> None:
    _, event = await mesh.until("provisioned", wanted())
    mesh.worker.script = lambda worker, execution_id: worker.finish(execution_id, code=3)
    command = execution_pb2.Command(arguments=["make"], on_full=execution_pb2.ON_FULL_BLOCK)
    command.grace.FromSeconds(5)
    request = execution_pb2.RunBatchRequest(
        idempotency_key="k",
        sandbox_id=event.provisioned.launch.sandbox_id,
        items=[
            execution_pb2.BatchItem(command=command),
            execution_pb2.BatchItem(
                file=file_pb2.FileOperation(read=file_pb2.ReadOperation(path=b"a"))
            ),
        ],
        continue_on_failure=True,
    )
    ran, read = (await mesh.executions.RunBatch(request)).outcomes
    assert ran.state == execution_pb2.BATCH_STATE_FAILED
    assert read.state == execution_pb2.BATCH_STATE_SUCCEEDED
    execution_id = ran.execution.execution_id
    program = mesh.worker.programs[execution_id]
    assert program.command.on_full is OnFull.BLOCK
    assert program.command.grace.total_seconds() == 5
    program.dropped = 4
    watch = mesh.executions.WatchOutput(execution_pb2.WatchOutputRequest(execution_id=execution_id))
    frames = [frame async for frame in watch]
    assert [frame.WhichOneof("frame") for frame in frames] == ["snapshot", "gap", "exit"]
    assert (frames[1].gap.first_sequence, frames[1].gap.last_sequence) == (1, 4)
    assert frames[1].gap.bytes == 40


@pytest.mark.asyncio
async def test_executions_in_a_held_launch(mesh: Mesh) -> None:
    launch_id, event = await mesh.until("provisioned", wanted())
    sandbox_id = event.provisioned.launch.sandbox_id
    start = execution_pb2.StartExecutionRequest(
        tenant="ignored",
        idempotency_key="k",
        sandbox_id=sandbox_id,
        command=execution_pb2.Command(arguments=["cat"], stdin=True),
    )
    execution = (await mesh.executions.StartExecution(start)).execution
    assert (await mesh.executions.StartExecution(start)).execution == execution
    execution_id = execution.execution_id
    written = await mesh.executions.WriteStdin(
        execution_pb2.WriteStdinRequest(execution_id=execution_id, offset=2, content=b"xyz")
    )
    assert written.offset == 5
    mesh.worker.write(execution_id, b"1", b"2")
    watch = mesh.executions.WatchOutput(
        execution_pb2.WatchOutputRequest(execution_id=execution_id, after_sequence=1)
    )
    seen = []
    async for frame in watch:
        seen.append(frame.WhichOneof("frame"))
        if frame.HasField("output"):
            assert frame.output.content == b"2"
            mesh.worker.cut_streams()
            await mesh.executions.SignalExecution(
                execution_pb2.SignalExecutionRequest(execution_id=execution_id, signal=15)
            )
    assert seen == ["snapshot", "output", "exit"]
    got = await mesh.executions.GetExecution(
        execution_pb2.GetExecutionRequest(execution_id=execution_id)
    )
    assert got.execution.exit.signal == 15
    await mesh.half.launches.open_port("default", launch_id, 8080, MEETING)
    ((_, port, meeting),) = mesh.worker.opened
    assert (port, meeting) == (8080, MEETING)
    for call in (
        mesh.executions.GetExecution(
            execution_pb2.GetExecutionRequest(execution_id=execution_id),
            metadata=(("tenant", "other"),),
        ),
        mesh.executions.StartExecution(start, metadata=(("tenant", "other"),)),
    ):
        with pytest.raises(FairleadError) as raised, neighbour_errors("signalling"):
            await call
        assert raised.value.reason in ("execution_not_found", "sandbox_not_found")
    renewed = await mesh.launches.RenewLaunch(
        launch_pb2.RenewLaunchRequest(launch_id=launch_id, lease=Duration(seconds=7200))
    )
    assert renewed.launch.HasField("expires_at")
    await mesh.launches.CancelLaunch(launch_pb2.CancelLaunchRequest(launch_id=launch_id))
    assert not mesh.worker.held


@pytest.mark.asyncio
async def test_a_command_is_run_and_watched_in_one_call(mesh: Mesh) -> None:
    mesh.worker.script = echo(b"1", b"2", code=3)
    _, event = await mesh.until("provisioned", wanted())
    start = execution_pb2.StartExecutionRequest(
        tenant="ignored",
        idempotency_key="k",
        sandbox_id=event.provisioned.launch.sandbox_id,
        command=execution_pb2.Command(arguments=["true"]),
    )
    request = execution_pb2.RunExecutionRequest(start=start)
    frames = [answer.frame async for answer in mesh.executions.RunExecution(request)]
    assert [frame.WhichOneof("frame") for frame in frames] == [
        "snapshot",
        "output",
        "output",
        "exit",
    ]
    assert [frame.output.content for frame in frames[1:3]] == [b"1", b"2"]
    assert frames[3].exit.code == 3
    request.after_sequence = 1
    rest = [answer.frame async for answer in mesh.executions.RunExecution(request)]
    assert rest == [frames[0], *frames[2:]]
    with pytest.raises(FairleadError) as raised, neighbour_errors("signalling"):
        async for _ in mesh.executions.RunExecution(request, metadata=(("tenant", "other"),)):
            pass
    assert raised.value.reason == "sandbox_not_found"


@pytest.mark.asyncio
async def test_launches_are_listed_and_kept_from_other_tenants(mesh: Mesh) -> None:
    mesh.worker.script = echo()
    ids = [(await mesh.launch())[0].snapshot.launch_id for _ in range(3)]
    page = await mesh.launches.ListLaunches(launch_pb2.ListLaunchesRequest(page_size=2))
    assert [launch.launch_id for launch in page.launches] == ids[:0:-1]
    rest = await mesh.launches.ListLaunches(
        launch_pb2.ListLaunchesRequest(page_token=page.next_page_token)
    )
    assert [launch.launch_id for launch in rest.launches] == ids[:1]
    assert not rest.next_page_token
    other = await mesh.launches.ListLaunches(
        launch_pb2.ListLaunchesRequest(), metadata=(("tenant", "other"),)
    )
    assert not other.launches


def _long_offer() -> launch_pb2.LaunchRequest:
    return wanted("true", offer="v=0\r\n" + "x" * 70_000)


def _lease(seconds: int) -> launch_pb2.LaunchRequest:
    return wanted("true", lease=Duration(seconds=seconds))


def _changed(change: Callable[[launch_pb2.LaunchRequest], None]) -> launch_pb2.LaunchRequest:
    request = wanted("true")
    change(request)
    return request


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (launch_pb2.LaunchRequest(), "project_invalid"),
        (wanted("true", branch="a..b"), "branch_invalid"),
        (wanted("true", branch="-x"), "branch_invalid"),
        (wanted("tr\0ue"), "command_invalid"),
        (wanted(""), "command_invalid"),
        (_changed(lambda request: request.source.ClearField("commit")), "commit_invalid"),
        (_changed(lambda request: request.command.timeout.FromSeconds(0)), "timeout_invalid"),
        (
            _changed(lambda request: request.command.timeout.CopyFrom(Duration(seconds=2**60))),
            "duration_invalid",
        ),
        (wanted("true", offer="malformed"), "sdp_invalid"),
        (_long_offer(), "sdp_invalid"),
        (_lease(0), "lease_invalid"),
        (_lease(90_000), "lease_invalid"),
        (wanted("true", isolation="No Such"), "isolation_invalid"),
        (wanted("true", isolation="microvm"), "isolation_unavailable"),
        (wanted("true", idempotency_key="ü"), "idempotency_key_invalid"),
    ],
)
async def test_bad_requests_are_refused_with_a_reason(
    mesh: Mesh, request_: launch_pb2.LaunchRequest, reason: str
) -> None:
    with pytest.raises(FairleadError) as raised:
        await mesh.launch(request_)
    assert raised.value.reason == reason
    assert not (await mesh.launches.ListLaunches(launch_pb2.ListLaunchesRequest())).launches


@pytest.mark.asyncio
async def test_a_launch_is_one_trace(mesh: Mesh) -> None:
    mesh.worker.script = echo(b"x")
    events = await mesh.launch()
    launch_id = events[0].snapshot.launch_id
    trace_id = events[0].snapshot.trace_id
    await mesh.launches.CancelLaunch(launch_pb2.CancelLaunchRequest(launch_id=launch_id))

    async def finished() -> dict[str, ReadableSpan]:
        return {
            span.name: span
            for span in mesh.spans.get_finished_spans()
            if span.context is not None and f"{span.context.trace_id:032x}" == trace_id
        }

    spans = await eventually(finished, lambda found: "launch.run" in found)
    run = spans["launch.run"]
    assert run.attributes is not None
    assert run.attributes["fairlead.launch.id"] == launch_id
    assert run.attributes["fairlead.launch.state"] == "exited"
    assert run.parent is not None
    for name in ("launch.place", "rpc.WorkspaceService/MaterializeWorkspace"):
        assert f"{spans[name].context.trace_id:032x}" == trace_id
    with pytest.raises(FailedPrecondition) as raised, neighbour_errors("signalling"):
        await mesh.launches.GetLaunchTrace(launch_pb2.GetLaunchTraceRequest(launch_id=launch_id))
    assert raised.value.reason == "trace_store_absent"


@pytest.mark.asyncio
async def test_a_drained_front_door_ends_its_streams(mesh: Mesh) -> None:
    async def watch() -> None:
        with neighbour_errors("signalling"):
            async for answer in mesh.launches.Launch(wanted("true")):
                if answer.event.WhichOneof("event") == "step":
                    await mesh.half.drain()

    with pytest.raises(FairleadError) as raised:
        await watch()
    assert raised.value.reason == "draining"
    with pytest.raises(FairleadError, match="about to stop"):
        await mesh.launch()


@pytest.mark.asyncio
async def test_a_host_that_is_not_there_fails_the_launch(mesh: Mesh, redis: Redis) -> None:
    for half in ("workspace", "sandbox"):
        key = f"fairlead:host:{HOST.host_id}:{half}"
        await redis.hset(key, "address", "unix:/nonexistent/socket")
    assert isinstance(mesh.half.hosts, RedisHosts)
    await mesh.half.hosts.refresh()
    events = await mesh.launch()
    assert kinds(events)[-1] == "failed"
    failure = events[-1].failed.failure
    assert failure.reason in ("workspace_provisioner_unavailable", "sandbox_worker_unavailable")
    assert failure.remedy
    await redis.delete(f"fairlead:host:{HOST.host_id}:sandbox")
    await mesh.half.hosts.refresh()
    with pytest.raises(FairleadError) as raised:
        await mesh.launch()
    assert raised.value.reason == "no_host"
