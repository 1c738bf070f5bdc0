"""A secret in the worker's environment is shown by no sandbox, log, span, journal or key."""

from __future__ import annotations

import secrets
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
import redis
from benchmarks.sandboxes.rooms import Client, Worker, opened_worker

from fairlead.execution.v1 import execution_pb2 as ex
from fairlead.sandbox.v1 import sandbox_pb2 as sb
from tests.eventually import eventually

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

_TENANT = "canary"
_OWN = "env; cat /proc/self/environ /proc/$PPID/environ 2>&1; set"
_ANY = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>&1; ls -l /proc/[0-9]*/fd 2>&1"


class SpanStore(ThreadingHTTPServer):
    """Keeps what is exported to it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        super().__init__(("127.0.0.1", 0), _Taker)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Taker(BaseHTTPRequestHandler):
    server: SpanStore

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def spans() -> Iterator[SpanStore]:
    with SpanStore() as store:
        serving = threading.Thread(target=store.serve_forever)
        serving.start()
        yield store
        store.shutdown()
        serving.join()


@pytest.fixture
def canary() -> str:
    return secrets.token_hex(24)


@pytest_asyncio.fixture
async def worker(canary: str, spans: SpanStore) -> AsyncIterator[Worker]:
    settings = {
        "WORKER_PASSWORD": canary,
        "FAIRLEAD_SANDBOX_EXPOSE_HOST_TO_ONE_TENANT": "1",
        "FAIRLEAD_LOG_LEVEL": "debug",
        "OTEL_EXPORTER_OTLP_ENDPOINT": spans.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    # A socket's path is at most 104 bytes long.
    with tempfile.TemporaryDirectory(prefix="fl-e2e-") as name:
        async with opened_worker(Path(name), settings) as opened:
            yield opened


async def shown(client: Client, isolation: str, *scripts: str) -> bytes:
    """Return what scripts print in a sandbox of this isolation, and what is said about both."""
    made = await client.sandboxes.CreateSandbox(
        sb.CreateSandboxRequest(
            tenant=_TENANT, idempotency_key=uuid.uuid4().hex, isolation=isolation
        )
    )
    told = made.SerializeToString()
    for script in scripts:
        started = await client.executions.StartExecution(
            ex.StartExecutionRequest(
                tenant=_TENANT,
                sandbox_id=made.sandbox.sandbox_id,
                command=ex.Command(arguments=["sh", "-c", script]),
            )
        )
        async for answer in client.executions.WatchOutput(
            ex.WatchOutputRequest(tenant=_TENANT, execution_id=started.execution.execution_id)
        ):
            told += answer.SerializeToString()
    return told


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.parametrize(("isolation", "scripts"), [("process", (_OWN,)), ("walled", (_OWN, _ANY))])
async def test_nothing_shows_the_workers_secret(
    worker: Worker, spans: SpanStore, canary: str, isolation: str, scripts: tuple[str, ...]
) -> None:
    secret = canary.encode()
    assert secret in environment_of(worker.pid)
    async with worker.dial() as client:
        try:
            told = await shown(client, isolation, *scripts)
        except grpc.aio.AioRpcError as refused:
            if isolation == "walled" and refused.code() is grpc.StatusCode.FAILED_PRECONDITION:
                pytest.skip(refused.details() or "")
            raise
    assert b"FAIRLEAD_SANDBOX_ID" in told
    assert secret not in told

    async def exported() -> bool:
        return any(b"execution.run" in body for body in spans.bodies)

    await eventually(exported)
    files = [path for path in worker.host_root.rglob("*") if path.is_file()]
    assert any("journals" in path.parts for path in files)
    assert all(secret not in path.read_bytes() for path in [*files, worker.log])
    with redis.Redis.from_url(worker.redis_url) as kept:
        assert all(secret not in (kept.dump(key) or b"") for key in kept.scan_iter())
    await worker.stop()
    assert all(secret not in body for body in spans.bodies)
