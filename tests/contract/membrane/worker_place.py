"""A place of the membrane: a walled sandbox of a real worker, by its gRPC service alone."""

from __future__ import annotations

import contextlib
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
import pytest

from chassis.ids import random_id
from fairlead.execution.v1 import execution_pb2
from fairlead.object.v1 import object_pb2, object_pb2_grpc
from fairlead.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from membrane.errors import MembraneError
from tests.contract.wire.sandbox_room import TENANT, room_process, room_settings
from tests.eventually import SECONDS

TARGETS = Path(__file__).parent / "targets"
_READ_BYTES = 1 << 18
_AT_ONCE = [(f"grpc.{which}_reconnect_backoff_ms", 200) for which in ("initial", "min", "max")]


class WorkerCarriage:
    """One call of AttachObjects; while `goes_on` is clear, what has come (`came`) is not handed
    on.
    """

    refusal: MembraneError | None = None

    def __init__(
        self, *, stub: object_pb2_grpc.ObjectServiceStub, sandbox_id: str, python: str
    ) -> None:
        self.fault = ""
        self.ended: object_pb2.ObjectsEnded | None = None
        self.came, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()
        self.stream, self._far = socket.socketpair()
        self._requests: queue.Queue[object_pb2.AttachObjectsRequest | None] = queue.Queue(4)
        self._requests.put(
            object_pb2.AttachObjectsRequest(
                open=object_pb2.OpenObjects(tenant=TENANT, sandbox_id=sandbox_id, python=python)
            )
        )
        self.call = stub.AttachObjects(iter(self._requests.get, None))
        self._sending = threading.Thread(target=self._send, daemon=True)
        self._sending.start()
        threading.Thread(target=self._receive, daemon=True).start()

    def kill(self) -> None:
        self.call.cancel()

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while content := self._far.recv(_READ_BYTES):
                self._put(object_pb2.AttachObjectsRequest(content=content))
        self._put(None)

    def _put(self, request: object_pb2.AttachObjectsRequest | None) -> None:
        while self.call.is_active():
            with contextlib.suppress(queue.Full):
                self._requests.put(request, timeout=0.1)
                return

    def _receive(self) -> None:
        try:
            for response in self.call:
                self.came.set()
                self.goes_on.wait()
                if response.HasField("ended"):
                    self.ended = response.ended
                    name = execution_pb2.ExitReason.Name(response.ended.reason)
                    self.fault = f"{name} {response.ended.errors}".strip()
                with contextlib.suppress(OSError):
                    self._far.sendall(response.content)
        except grpc.RpcError as error:
            self.fault = f"{error.code().name}: {error.details()}"
        with contextlib.suppress(OSError):
            self._far.shutdown(socket.SHUT_RDWR)
        self.call.cancel()
        self._sending.join()
        self._far.close()


class WorkerPlace:
    """A sandbox with the test targets in its workspace."""

    name = "a worker of the tests"

    def __init__(
        self, *, channel: grpc.Channel, sandbox_id: str, isolation: str, tree: Path
    ) -> None:
        self.sandbox_id = sandbox_id
        self.isolation = isolation
        self.tree = tree
        self.carriages: list[WorkerCarriage] = []
        self._sandboxes = sandbox_pb2_grpc.SandboxServiceStub(channel)
        self._objects = object_pb2_grpc.ObjectServiceStub(channel)

    def carry(self, python: str) -> WorkerCarriage:
        made = WorkerCarriage(stub=self._objects, sandbox_id=self.sandbox_id, python=python)
        self.carriages.append(made)
        return made

    def release(self) -> None:
        """Give the sandbox back; returns when no process of it is left."""
        self._sandboxes.ReleaseSandbox(
            sandbox_pb2.ReleaseSandboxRequest(tenant=TENANT, sandbox_id=self.sandbox_id)
        )


@dataclass(frozen=True, slots=True)
class OwnWorker:
    """A worker process of the tests, and what is asked of it."""

    process: subprocess.Popen[bytes]
    channel: grpc.Channel
    host_root: Path

    def place(self, isolation: str = "walled") -> WorkerPlace:
        """Make a sandbox; skips the test where it cannot be had."""
        sandboxes = sandbox_pb2_grpc.SandboxServiceStub(self.channel)
        workspace_id = random_id("wsp")
        tree = self.host_root / "trees" / workspace_id
        shutil.copytree(TARGETS, tree / "tests/contract/membrane/targets")
        try:
            made = sandboxes.CreateSandbox(
                sandbox_pb2.CreateSandboxRequest(
                    tenant=TENANT, idempotency_key=random_id("lch"), isolation=isolation
                )
            )
        except grpc.RpcError as error:
            pytest.skip(f"no sandbox {isolation}: {error.details()}")
        sandboxes.BindWorkspace(
            sandbox_pb2.BindWorkspaceRequest(
                tenant=TENANT, sandbox_id=made.sandbox.sandbox_id, workspace_id=workspace_id
            )
        )
        return WorkerPlace(
            channel=self.channel,
            sandbox_id=made.sandbox.sandbox_id,
            isolation=isolation,
            tree=tree,
        )

    def below(self) -> list[psutil.Process]:
        """The processes below it."""
        return psutil.Process(self.process.pid).children(recursive=True)


@contextlib.contextmanager
def own_worker() -> Iterator[OwnWorker]:
    """A worker process for a while, and nothing of it afterwards."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="objects-")))
        settings = room_settings(folder / "host", folder)
        process = stack.enter_context(room_process(settings))
        ends_at = time.monotonic() + SECONDS
        while not (folder / "worker").exists():
            assert process.poll() is None
            assert time.monotonic() < ends_at
            time.sleep(0.02)
        channel = stack.enter_context(grpc.insecure_channel(settings.bind, options=_AT_ONCE))
        sandbox_pb2_grpc.SandboxServiceStub(channel).ReleaseSandbox(
            sandbox_pb2.ReleaseSandboxRequest(tenant=TENANT, idempotency_key="nothing"),
            wait_for_ready=True,
            timeout=SECONDS,
        )
        yield OwnWorker(process, channel, settings.host_root)
        process.terminate()
        process.wait(SECONDS)
