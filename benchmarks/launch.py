"""`make bench NAME=launch`: how long a launch takes from the call to the first byte of output.

Every launch runs `printf x` and the byte is checked. The peer is what one would do by hand on the
same machine: `git worktree add` and then the command, with no isolation, no journal, no network.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.local_stack import GIT, Repository, Stack, local_stack, make_repository
from benchmarks.recording import QUICK, Recording, median_ms, percentile
from fairlead.execution.v1 import execution_pb2
from fairlead.launch.v1 import launch_pb2, launch_pb2_grpc
from fairlead.snapshot.v1 import snapshot_pb2, snapshot_pb2_grpc

WARM_LAUNCHES = 20 if QUICK else 300
COLD_LAUNCHES = 3 if QUICK else 20
HOPS = 50 if QUICK else 1000
AT_ONCE = 16
BURST = 32 if QUICK else 320
CHUNK = 1 << 20


class Client:
    """The front door over gRPC, on one channel."""

    def __init__(self, stack: Stack, channel: grpc.aio.Channel) -> None:
        self._metadata = (("authorization", f"Bearer {stack.api_key}"),)
        self._launches = launch_pb2_grpc.LaunchServiceStub(channel)
        self._snapshots = snapshot_pb2_grpc.SnapshotServiceStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)

    async def hop(self) -> float:
        """Time one empty unary call, in seconds."""
        start = time.perf_counter()
        await self._health.Check(health_pb2.HealthCheckRequest())  # type: ignore[attr-defined]
        return time.perf_counter() - start

    async def launch(self, repository: Repository) -> float:
        """Launch `printf x`, await its end, return the seconds until its byte was here."""
        request = launch_pb2.LaunchRequest(
            source=snapshot_pb2.Source(
                project=repository.project, commit=repository.commit, branch="main"
            ),
            command=execution_pb2.Command(arguments=["printf", "x"]),
        )
        start = time.perf_counter()
        first = 0.0
        output = b""
        async for response in self._launches.Launch(request, metadata=self._metadata):
            event = response.event
            match event.WhichOneof("event"):
                case "output":
                    first = first or time.perf_counter() - start
                    output += event.output.content
                case "miss":
                    await self._snapshots.UploadSnapshot(
                        self._upload(event.miss.upload_token, repository), metadata=self._metadata
                    )
                case "exited":
                    assert event.exited.exit.code == 0
                case "failed" | "cancelled":
                    raise AssertionError(str(event))
                case _:
                    pass
        assert output == b"x", output
        return first

    async def _upload(
        self, token: str, repository: Repository
    ) -> AsyncIterator[snapshot_pb2.UploadSnapshotRequest]:
        yield snapshot_pb2.UploadSnapshotRequest(open=snapshot_pb2.OpenUpload(upload_token=token))
        pack = await asyncio.to_thread(repository.pack)
        for offset in range(0, len(pack), CHUNK):
            yield snapshot_pb2.UploadSnapshotRequest(chunk=pack[offset : offset + CHUNK])


def by_hand(repository: Repository, place: Path) -> float:
    """Time the peer: a worktree, the command in it, its byte."""
    start = time.perf_counter()
    subprocess.run(
        [*GIT, "-C", str(repository.path), "worktree", "add", "-q", "--detach", str(place)],
        check=True,
    )
    printed = subprocess.run(["printf", "x"], cwd=place, capture_output=True, check=True)
    elapsed = time.perf_counter() - start
    assert printed.stdout == b"x"
    remove = ["worktree", "remove", "--force", str(place)]
    subprocess.run([*GIT, "-C", str(repository.path), *remove], check=True)
    return elapsed


async def burst(client: Client, repository: Repository) -> float:
    """Return launches per second with `AT_ONCE` under way all the time."""
    left = iter(range(BURST))

    async def worker() -> None:
        for _ in left:
            await client.launch(repository)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())
    return BURST / (time.perf_counter() - start)


async def measure(stack: Stack, directory: Path, recording: Recording) -> None:
    """Fill the recording."""
    hundred = make_repository(directory / "hundred", files=100, seed=1)
    thousand = make_repository(directory / "thousand", files=1000, seed=2)
    async with grpc.aio.insecure_channel(stack.grpc) as channel:
        client = Client(stack, channel)
        for repository in (hundred, thousand):
            for _ in range(3):
                await client.launch(repository)
        hops = [await client.hop() for _ in range(HOPS)]
        warm, peer = [], []
        for index in range(WARM_LAUNCHES):
            warm.append(await client.launch(hundred))
            if index % 10 == 0:
                peer.append(by_hand(hundred, directory / "by-hand"))
        warm_1k = [await client.launch(thousand) for _ in range(max(WARM_LAUNCHES // 5, 5))]
        cold = []
        for index in range(COLD_LAUNCHES):
            fresh = make_repository(directory / f"cold-{index}", files=100, seed=100 + index)
            cold.append(await client.launch(fresh))
        rate = await burst(client, hundred)
    recording.metrics |= {
        "warm_launch_p50_ms": median_ms(warm),
        "warm_launch_p99_ms": round(percentile(warm, 0.99) * 1000, 2),
        "warm_launch_p50_ms_1k": median_ms(warm_1k),
        "cold_launch_p50_ms": median_ms(cold),
        "hop_p50_ms": median_ms(hops),
        "launches_per_s": round(rate, 2),
    }
    recording.peers["git_worktree_add_and_run_p50_ms"] = median_ms(peer)


def main() -> None:
    recording = Recording(name="launch", runs=WARM_LAUNCHES)
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-bench-") as directory,
        local_stack() as stack,
    ):
        asyncio.run(measure(stack, Path(directory), recording))
    recording.write()


if __name__ == "__main__":
    main()
