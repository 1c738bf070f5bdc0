"""What the launch half of the REST API takes and answers: the fields of the protos, in JSON."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from signalling.execution import Command, ExecutionState, ExitReason, OutputStream
from signalling.launch import CancelReason, LaunchState, Step, StepState
from signalling.launch_request import LaunchRequest
from signalling.rest_types import Answer, Body, EncodedBytes, LeaseSeconds, TimeoutSeconds
from signalling.snapshot import MissReason
from signalling.source_bodies import FreshnessAnswer, SourceBody


class CommandBody(Body):
    """What to run."""

    arguments: list[str] = Field(description="Program and arguments, 1 to 4096.")
    environment: dict[str, str] = Field(default_factory=dict)
    directory: str = Field(default="", description="Working directory, below the workspace.")
    stdin: bool = Field(default=False, description="Whether standard input will be written.")
    timeout: TimeoutSeconds | None = Field(default=None, description="Seconds; none when null.")

    def value(self) -> Command:
        """Return the domain's value."""
        return Command(
            arguments=tuple(self.arguments),
            environment=self.environment,
            directory=self.directory,
            stdin=self.stdin,
            timeout=None if self.timeout is None else timedelta(seconds=self.timeout),
        )


class LaunchBody(Body):
    """What to launch, on which snapshot."""

    source: SourceBody
    branch: str = Field(default="", description="Branch of the workspace; the source's if empty.")
    command: CommandBody | None = Field(default=None, description="Nothing runs when null.")
    keep: bool = Field(default=False, description="Hold everything after the command has ended.")
    lease: LeaseSeconds | None = Field(default=None, description="Seconds; 1800 when null.")
    isolation: str = Field(default="", description="Isolation to have; the best when empty.")
    offer: str = Field(default="", description="Complete SDP offer; none when empty.")
    idempotency_key: str | None = Field(default=None, description="As the header of that name.")

    def value(self) -> LaunchRequest:
        """Return the domain's value."""
        return LaunchRequest(
            source=self.source.value(),
            branch=self.branch,
            command=None if self.command is None else self.command.value(),
            keep=self.keep,
            lease=None if self.lease is None else timedelta(seconds=self.lease),
            isolation=self.isolation,
            offer=self.offer,
        )


class ExitAnswer(Answer):
    """How an execution ended."""

    reason: ExitReason
    code: int | None = Field(description="Exit code; null unless it exited by itself.")
    signal: int | None = Field(description="Signal number; null unless a signal ended it.")
    last_sequence: int = Field(description="Number of the last output record; 0 for none.")
    ended_at: datetime


class ExecutionAnswer(Answer):
    """One command inside a sandbox."""

    execution_id: str
    sandbox_id: str
    state: ExecutionState
    arguments: list[str]
    started_at: datetime
    exit: ExitAnswer | None


class OutputAnswer(Answer):
    """A piece of output."""

    execution_id: str
    sequence: int
    stream: OutputStream
    content: EncodedBytes
    written_at: datetime


class FailureAnswer(Answer):
    """Which step failed and why."""

    step: Step | None
    reason: str
    message: str
    remedy: str


class LaunchAnswer(Answer):
    """What somebody asked for and how far it has come; ids are empty before their step is done."""

    launch_id: str
    state: LaunchState
    created_at: datetime
    ended_at: datetime | None
    released_at: datetime | None
    expires_at: datetime | None
    project: str
    commit: str
    branch: str
    arguments: list[str]
    keep: bool
    host_id: str
    workspace_id: str
    sandbox_id: str
    isolation: str
    session_id: str
    execution_id: str
    exit: ExitAnswer | None
    failure: FailureAnswer | None
    trace_id: str


class StepAnswer(Answer):
    """A step started, finished, failed or was undone."""

    step: Step
    state: StepState
    elapsed: float | None
    failure: FailureAnswer | None
    detail: str
    freshness: FreshnessAnswer | None = Field(
        default=None, description="Once the workspace is done, when an upstream was asked for."
    )
    lfs_pointers: int = Field(
        default=0,
        description="Files of the workspace that are LFS pointers; at most 1000 are counted.",
    )
    tags_left_out: bool = Field(
        default=False,
        description="Whether tags of the source were left out, whose objects the host lacks.",
    )


class MissAnswer(Answer):
    """The host lacks objects; the launch waits for an upload."""

    reason: MissReason
    wanted: list[str]
    tips: list[str]
    upload_token: str
    expires_at: datetime


class OfferAnswer(Answer):
    """The gateway's answer to the launch's offer."""

    session_id: str
    answer: str


class ProvisionedAnswer(Answer):
    """Workspace and sandbox are ready."""

    launch: LaunchAnswer


class ExitedAnswer(Answer):
    """The command has ended."""

    exit: ExitAnswer
    changed_files: int | None
    discarded: bool


class FailedAnswer(Answer):
    """The launch failed."""

    failure: FailureAnswer


class CancelledAnswer(Answer):
    """The launch was cancelled."""

    reason: CancelReason


class EventAnswer(BaseModel):
    """One event of a launch, one line of the stream; the member named as `type` says is there."""

    model_config = ConfigDict(extra="forbid")

    cursor: str
    occurred_at: datetime
    type: Literal[
        "snapshot",
        "step",
        "miss",
        "answer",
        "output",
        "provisioned",
        "exited",
        "failed",
        "cancelled",
    ]
    snapshot: LaunchAnswer | None = None
    step: StepAnswer | None = None
    miss: MissAnswer | None = None
    answer: OfferAnswer | None = None
    output: OutputAnswer | None = None
    provisioned: ProvisionedAnswer | None = None
    exited: ExitedAnswer | None = None
    failed: FailedAnswer | None = None
    cancelled: CancelledAnswer | None = None
