"""A client that creates, runs and releases at random until it is killed or its standard input ends.

The first line of its input is the secret that nothing may show. It ends with code 3 when it saw
that, and with 1 when something failed although the worker was not being hurt.
"""

from __future__ import annotations

import os
import random
import select
import sys
import uuid

import grpc
from google.protobuf.duration_pb2 import Duration

from fairlead.execution.v1 import execution_pb2 as ex
from fairlead.execution.v1 import execution_pb2_grpc
from fairlead.file.v1 import file_pb2 as fl
from fairlead.file.v1 import file_pb2_grpc
from fairlead.sandbox.v1 import sandbox_pb2 as sb
from fairlead.sandbox.v1 import sandbox_pb2_grpc

TENANT = "soak"
MIB = 1024 * 1024
_SEES = "env; cat /proc/1/environ /proc/self/environ /proc/self/mountinfo 2>/dev/null; true"
_SCRIPTS = (
    "true",
    "exit 3",
    _SEES,
    "seq 1 20000",
    "echo one > here && cat here && rm here",
    "setsid sh -c 'trap : TERM; setsid sleep 600 & sleep 600' >/dev/null 2>&1 & echo gone",
    "for i in $(seq 1 200); do sleep 600 & done 2>/dev/null; true",
    "kill -9 $$",
    "head -c 300000 /dev/urandom > written; rm written",
    "sleep 0.05",
)


class Client:
    """One caller; `patient` calls fail only when something is wrong."""

    def __init__(
        self, *, channel: grpc.Channel, numbers: random.Random, isolation: str, workspace: str
    ) -> None:
        self._sandboxes = sandbox_pb2_grpc.SandboxServiceStub(channel)
        self._executions = execution_pb2_grpc.ExecutionServiceStub(channel)
        self._files = file_pb2_grpc.FileServiceStub(channel)
        self._numbers = numbers
        self._isolation = isolation
        self._workspace = workspace

    def live(self) -> bytes:
        """Create a sandbox, use it, and mostly release it; returns all that it showed."""
        made = self._sandboxes.CreateSandbox(
            sb.CreateSandboxRequest(
                tenant=TENANT,
                idempotency_key=uuid.uuid4().hex,
                isolation=self._isolation,
                lease=Duration(seconds=self._numbers.choice((1, 2, 5))),
                workspace_id=self._workspace,
                network=self._network(),
                limits=sb.Limits(
                    memory_bytes=self._numbers.choice((64, 256)) * MIB, processes=64, cpu_milli=1000
                ),
            ),
            timeout=30,
        )
        shown = made.SerializeToString()
        try:
            for _ in range(self._numbers.randint(1, 4)):
                if self._numbers.random() < 0.2:
                    shown += self._look(made.sandbox.sandbox_id)
                shown += self._run(made.sandbox.sandbox_id, self._numbers.choice(_SCRIPTS))
        finally:
            if self._numbers.random() < 0.8:
                self._sandboxes.ReleaseSandbox(
                    sb.ReleaseSandboxRequest(tenant=TENANT, sandbox_id=made.sandbox.sandbox_id),
                    timeout=30,
                )
        return shown

    def _network(self) -> sb.NetworkPolicy | None:
        """Return a policy with a proxy for some, where the isolation can have one."""
        if self._isolation == "process" or self._numbers.random() < 0.7:
            return None
        return sb.NetworkPolicy(mode=sb.NETWORK_MODE_EGRESS, allow=["example.org"])

    def _look(self, sandbox_id: str) -> bytes:
        """List the workspace, and leave a watch and a download of it at their first answers."""
        shown = self._files.ListFiles(
            fl.ListFilesRequest(tenant=TENANT, sandbox_id=sandbox_id, path=b"."), timeout=30
        ).SerializeToString()
        for answers in (
            self._files.WatchFiles(
                fl.WatchFilesRequest(tenant=TENANT, sandbox_id=sandbox_id, path=b"."), timeout=30
            ),
            self._files.DownloadTree(
                fl.DownloadTreeRequest(tenant=TENANT, sandbox_id=sandbox_id, path=b"."), timeout=30
            ),
        ):
            shown += next(answers).SerializeToString()
            answers.cancel()
        return bytes(shown)

    def _run(self, sandbox_id: str, script: str) -> bytes:
        started = self._executions.StartExecution(
            ex.StartExecutionRequest(
                tenant=TENANT,
                sandbox_id=sandbox_id,
                command=ex.Command(
                    arguments=["sh", "-c", script],
                    timeout=Duration(seconds=20),
                    terminal=self._numbers.choice((None, None, ex.TerminalSize(rows=9, columns=9))),
                ),
            ),
            timeout=30,
        )
        if self._numbers.random() < 0.1:
            return b""  # nobody watches this one
        answers = self._executions.WatchOutput(
            ex.WatchOutputRequest(tenant=TENANT, execution_id=started.execution.execution_id),
            timeout=60,
        )
        leaves = self._numbers.random() < 0.1
        shown = b""
        for answer in answers:
            shown += answer.output.content
            if leaves:
                answers.cancel()
                return shown
        assert answer.WhichOneof("frame") == "exit", answer
        return shown


def main() -> int:
    """Live until the input ends; words: address, seed, isolation, workspace, whether failures of
    the worker are expected.
    """
    address, seed, isolation, workspace, hurt = sys.argv[1:]
    secret = sys.stdin.readline().strip().encode()
    with grpc.insecure_channel(address) as channel:
        client = Client(
            channel=channel,
            numbers=random.Random(int(seed)),  # noqa: S311 - a run that can be repeated
            isolation=isolation,
            workspace=workspace,
        )
        while not select.select([0], [], [], 0)[0]:
            try:
                shown = client.live()
            except grpc.RpcError as error:
                # Its lease has ended, or its own programs fill it.
                own = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.RESOURCE_EXHAUSTED)
                if hurt != "hurt" and error.code() not in own:
                    print(error, file=sys.stderr)
                    return 1
                continue
            if secret in shown:
                os.write(2, b"a sandbox has shown the secret\n")
                return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
