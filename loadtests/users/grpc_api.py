"""A user of the gRPC front door."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
from locust import User, task

from fairlead.execution.v1 import execution_pb2, execution_pb2_grpc
from fairlead.launch.v1 import launch_pb2, launch_pb2_grpc
from fairlead.session.v1 import session_pb2, session_pb2_grpc
from fairlead.snapshot.v1 import snapshot_pb2, snapshot_pb2_grpc
from loadtests import scenario

SECONDS = 30.0


class GrpcUser(User):
    """Launches, runs commands in a launch that it keeps, and negotiates with a gateway for it."""

    def on_start(self) -> None:
        self.channel = grpc.insecure_channel(scenario.GRPC)
        self.metadata = (("authorization", f"Bearer {scenario.KEY}"),)
        self.launches = launch_pb2_grpc.LaunchServiceStub(self.channel)
        self.snapshots = snapshot_pb2_grpc.SnapshotServiceStub(self.channel)
        self.executions = execution_pb2_grpc.ExecutionServiceStub(self.channel)
        self.sessions = session_pb2_grpc.SessionServiceStub(self.channel)
        self.kept = self._launch(keep=True)

    def on_stop(self) -> None:
        self.launches.CancelLaunch(
            launch_pb2.CancelLaunchRequest(launch_id=self.kept.launch_id),
            metadata=self.metadata,
            timeout=SECONDS,
        )
        self.channel.close()

    @task(3)
    def launch(self) -> None:
        with scenario.timed(self.environment, "gRPC launch"):
            self._launch(keep=False)

    @task(3)
    def execute(self) -> None:
        with scenario.timed(self.environment, "gRPC exec"):
            started = self.executions.StartExecution(
                execution_pb2.StartExecutionRequest(
                    idempotency_key=scenario.key(),
                    sandbox_id=self.kept.sandbox_id,
                    command=execution_pb2.Command(arguments=["printf", "x"]),
                ),
                metadata=self.metadata,
                timeout=SECONDS,
            )
            watched = execution_pb2.WatchOutputRequest(execution_id=started.execution.execution_id)
            frames = list(
                self.executions.WatchOutput(watched, metadata=self.metadata, timeout=SECONDS)
            )
            written = b"".join(frame.output.content for frame in frames)
            if written != b"x" or not frames[-1].HasField("exit") or frames[-1].exit.code != 0:
                raise AssertionError(f"unexpected output: {frames}")

    @task(1)
    def negotiate(self) -> None:
        with scenario.timed(self.environment, "gRPC negotiate"):
            opened = self.sessions.OpenSession(
                session_pb2.OpenSessionRequest(
                    idempotency_key=scenario.key(),
                    launch_id=self.kept.launch_id,
                    mode=session_pb2.SESSION_MODE_COMPLETE,
                ),
                metadata=self.metadata,
                timeout=SECONDS,
            )
            session_id = opened.session.session_id
            answered = self.sessions.SendOffer(
                session_pb2.SendOfferRequest(session_id=session_id, offer=scenario.OFFER),
                metadata=self.metadata,
                timeout=SECONDS,
            )
            if not answered.answer.startswith("v=0"):
                raise AssertionError(f"not an answer: {answered}")
            self.sessions.CloseSession(
                session_pb2.CloseSessionRequest(session_id=session_id),
                metadata=self.metadata,
                timeout=SECONDS,
            )

    def _launch(self, *, keep: bool) -> launch_pb2.Launch:
        """Run `printf x`, or with `keep` nothing; return the launch as it was provisioned."""
        repository = scenario.repository()
        request = launch_pb2.LaunchRequest(
            idempotency_key=scenario.key(),
            source=snapshot_pb2.Source(
                project=repository.project, commit=repository.commit, branch="main"
            ),
        )
        if not keep:
            request.command.arguments.extend(["printf", "x"])
        output = b""
        launch = launch_pb2.Launch()
        stream = self.launches.Launch(request, metadata=self.metadata, timeout=60)
        for response in stream:
            event = response.event
            match event.WhichOneof("event"):
                case "output":
                    output += event.output.content
                case "miss":
                    self._upload(event.miss.upload_token)
                case "provisioned":
                    stream.cancel()
                    return event.provisioned.launch
                case "exited" if event.exited.exit.code != 0:
                    raise AssertionError(str(event))
                case "failed" | "cancelled":
                    raise AssertionError(str(event))
                case _:
                    pass
        if output != b"x":
            raise AssertionError(f"unexpected output: {output!r}")
        return launch

    def _upload(self, token: str) -> None:
        def frames() -> Iterator[snapshot_pb2.UploadSnapshotRequest]:
            yield snapshot_pb2.UploadSnapshotRequest(
                open=snapshot_pb2.OpenUpload(upload_token=token)
            )
            pack = scenario.pack()
            for offset in range(0, len(pack), scenario.CHUNK):
                yield snapshot_pb2.UploadSnapshotRequest(
                    chunk=pack[offset : offset + scenario.CHUNK]
                )

        self.snapshots.UploadSnapshot(frames(), metadata=self.metadata, timeout=60)
