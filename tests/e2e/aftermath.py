"""What launches leave behind: looked for on the disk, among the processes, in Redis and in what the
rooms themselves list.

What may stay is a terminal record with a time to live, durable snapshots and journals of output.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import psutil
import redis

from fairlead.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from fairlead.workspace.v1 import workspace_pb2, workspace_pb2_grpc
from tests.e2e.running_stack import RunningStack

_KEPT = (
    "launch-ended",
    "launch",
    "launch-events",
    "execution",
    "sandbox",
    "sandbox-key",
    "snapshot",
    "idempotency",
    "session",
    "workspace",
    "workspace-key",
)
_INDEXES = ("tenant-sessions", "launches", "gateway-sessions", "launch-sessions")
_LEASED = ("host", "gateway", "gateways", "launch-owner", "published")


def is_bare(stack: RunningStack, seconds: float = 60.0) -> None:
    """Wait until nothing is left of any launch; AssertionError names what is."""
    deadline = time.monotonic() + seconds
    while left := leftovers(stack):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def leftovers(stack: RunningStack) -> list[str]:
    """Name everything that is left of launches right now."""
    try:
        return [
            *_files(stack),
            *_processes(stack),
            *_listed(stack),
            *_records(stack),
        ]
    except (grpc.RpcError, redis.RedisError, psutil.Error, OSError) as away:
        return [f"cannot look: {away!r}"]


def host_root(stack: RunningStack) -> Path:
    """Return the directory of the stack's host."""
    return stack.state / "host"


def _files(stack: RunningStack) -> list[str]:
    root = host_root(stack)
    places = [
        root / "trees",
        root / "layers",
        *(root / "workspaces" / name for name in (".staging", ".incoming", ".trash", ".baselines")),
        root / "sandboxes" / "private",
    ]
    return [str(found) for place in places if place.is_dir() for found in place.iterdir()]


def _processes(stack: RunningStack) -> list[str]:
    """Find programs of sandboxes, helpers of git, and sockets of associations."""
    pids = stack.pids
    supervisor = psutil.Process(stack.supervisor.pid)
    expected = {supervisor.pid, *pids.values()}
    spawner = [
        child.pid
        for child in psutil.Process(pids["sandbox-worker"]).children()
        if any("isolation.spawner" in word for word in child.cmdline())
    ]
    found = []
    below = supervisor.children(recursive=True)
    for process in {*below, *stack.places.processes()}:
        if process.pid in expected or process.pid in spawner:
            continue
        with suppress(psutil.NoSuchProcess):
            words = " ".join(process.cmdline())
            # These stay: the one that starts git, one git for each object store in use, and zygotes
            # with the inits that they keep ready.
            stays = ("wall.spawner", "isolation.zygote", "cat-file --batch")
            if not any(word in words for word in stays):
                found.append(f"process {process.pid}: {words}")
    gateway = psutil.Process(pids["relay-gateway"])
    found += [f"socket of the gateway: {each.laddr}" for each in gateway.net_connections("udp")]
    return found


def _listed(stack: RunningStack) -> list[str]:
    with worker_channel(stack, "workspace.sock") as (channel, metadata):
        workspaces = workspace_pb2_grpc.WorkspaceServiceStub(channel).ListWorkspaces(
            workspace_pb2.ListWorkspacesRequest(), metadata=metadata, timeout=5
        )
    with worker_channel(stack, "sandbox.sock") as (channel, metadata):
        sandboxes = sandbox_pb2_grpc.SandboxServiceStub(channel).ListSandboxes(
            sandbox_pb2.ListSandboxesRequest(), metadata=metadata, timeout=5
        )
    return [each.workspace_id for each in workspaces.workspaces] + [
        each.sandbox_id for each in sandboxes.sandboxes
    ]


@contextmanager
def worker_channel(
    stack: RunningStack, name: str
) -> Iterator[tuple[grpc.Channel, tuple[tuple[str, str]]]]:
    """Dial a room of the host as signalling does: over its private socket, with the secret."""
    socket = Path(str(stack.described()["runtime"])) / name
    secret = (stack.state / "secret").read_text().strip()
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        yield channel, (("fairlead-secret", secret),)


def redis_of(stack: RunningStack) -> redis.Redis:
    """Connect to the Redis of the stack."""
    return redis.Redis.from_url(str(stack.described()["redis_url"]), decode_responses=True)


def _records(stack: RunningStack) -> list[str]:
    found = []
    with redis_of(stack) as client:
        for key in client.scan_iter("*", count=1000):
            kind = key.split(":")[1]
            if kind not in (*_KEPT, *_INDEXES, *_LEASED):
                found.append(f"unknown key {key}")
            elif kind not in ("launches", "tenant-sessions") and client.ttl(key) == -1:
                found.append(f"{key} has no time to live")
            if kind == "launch":
                found += _unfinished(key, client.hget(key, "record"))
            if kind == "session":
                found += _open(key, client.hget(key, "record"))
            if kind == "idempotency" and not json.loads(client.get(key) or "{}").get("status"):
                found.append(f"{key} is pending")
    return found


def _unfinished(key: str, record: str | None) -> list[str]:
    launch = json.loads(record or "{}").get("launch", {})
    is_over = launch.get("state") in {"exited", "failed", "cancelled"} and launch["released_at"]
    return [] if is_over else [f"{key} is {launch}"]


def _open(key: str, record: str | None) -> list[str]:
    state = json.loads(record or "{}").get("state")
    return [] if state == "closed" else [f"{key} is {state}"]
