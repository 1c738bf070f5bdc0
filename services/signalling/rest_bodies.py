"""What the launch half of the REST API takes and answers: the fields of the protos, in JSON."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from signalling.execution import (
    Command,
    ExecutionState,
    ExitReason,
    GapReason,
    OnFull,
    OutputStream,
    TerminalSize,
)
from signalling.launch import CancelReason, LaunchState, Step, StepState
from signalling.launch_request import LaunchRequest
from signalling.rest_types import (
    Answer,
    Body,
    EncodedBytes,
    GraceSeconds,
    LeaseSeconds,
    OnFullName,
    TimeoutSeconds,
)
from signalling.sandbox_bodies import LimitsBody, NetworkBody, SandboxAnswer
from signalling.snapshot import MissReason
from signalling.source_bodies import FreshnessAnswer, SourceBody


class TerminalBody(Body):
    """The size of a terminal in characters."""

    rows: int = Field(json_schema_extra={"minimum": 1, "maximum": 65535})
    columns: int = Field(json_schema_extra={"minimum": 1, "maximum": 65535})

    def value(self) -> TerminalSize:
        """Return the domain's value."""
        return TerminalSize(self.rows, self.columns)


class CommandBody(Body):
    """What to run."""

    arguments: list[str] = Field(description="Program and arguments, 1 to 4096.")
    environment: dict[str, str] = Field(default_factory=dict)
    directory: str = Field(default="", description="Working directory, below the workspace.")
    stdin: bool = Field(default=False, description="Whether standard input will be written.")
    timeout: TimeoutSeconds | None = Field(default=None, description="Seconds; none when null.")
    terminal: TerminalBody | None = Field(
        default=None, description="Size of the terminal to run on; on pipes when null."
    )
    on_full: OnFullName = Field(
        default="drop_oldest",
        description="When the output that is kept has reached its bound: drop the oldest, or let"
        " the program wait for whoever watches.",
    )
    grace: GraceSeconds = Field(
        default=2.0, description="Seconds between SIGTERM and SIGKILL after the timeout."
    )

    def value(self) -> Command:
        """Return the domain's value."""
        return Command(
            arguments=tuple(self.arguments),
            environment=self.environment,
            directory=self.directory,
            stdin=self.stdin,
            timeout=None if self.timeout is None else timedelta(seconds=self.timeout),
            terminal=None if self.terminal is None else self.terminal.value(),
            on_full=OnFull(self.on_full),
            grace=timedelta(seconds=self.grace),
        )


class LaunchBody(Body):
    """What to launch, on which snapshot."""

    source: SourceBody | None = Field(
        default=None, description="What to check out; null only with a `workspace_id`."
    )
    branch: str = Field(default="", description="Branch of the workspace; the source's if empty.")
    command: CommandBody | None = Field(default=None, description="Nothing runs when null.")
    keep: bool = Field(default=False, description="Hold everything after the command has ended.")
    lease: LeaseSeconds | None = Field(default=None, description="Seconds; 1800 when null.")
    isolation: str = Field(default="", description="Isolation to have; the best when empty.")
    profile: str = Field(default="", description="Profile of the sandbox; `default` when empty.")
    limits: LimitsBody | None = None
    network: NetworkBody | None = None
    workspace_id: str = Field(
        default="", description="Workspace to run in, which stays; in place of a source."
    )
    offer: str = Field(default="", description="Complete SDP offer; none when empty.")
    idempotency_key: str | None = Field(default=None, description="As the header of that name.")

    def value(self) -> LaunchRequest:
        """Return the domain's value."""
        return LaunchRequest(
            source=None if self.source is None else self.source.value(),
            branch=self.branch,
            command=None if self.command is None else self.command.value(),
            keep=self.keep,
            lease=None if self.lease is None else timedelta(seconds=self.lease),
            isolation=self.isolation,
            offer=self.offer,
            limits=(self.limits or LimitsBody()).value(),
            profile=self.profile,
            network=None if self.network is None else self.network.value(),
            workspace_id=self.workspace_id,
        )


class ExitAnswer(Answer):
    """How an execution ended."""

    reason: ExitReason
    code: int | None = Field(description="Exit code; null unless it exited by itself.")
    signal: int | None = Field(description="Signal number; null unless a signal ended it.")
    last_sequence: int = Field(description="Number of the last output record; 0 for none.")
    ended_at: datetime
    cpu_time: float | None = Field(description="Seconds; null when nobody saw it end.")
    peak_memory_bytes: int = Field(description="Largest resident memory of one of its processes.")

    @field_validator("cpu_time", mode="before")
    @classmethod
    def _seconds(cls, value: object) -> object:
        return value.total_seconds() if isinstance(value, timedelta) else value


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


class GapAnswer(Answer):
    """Output that is no longer there, or never reached the disk."""

    first_sequence: int
    last_sequence: int
    bytes: int = Field(description="Bytes of output that are missing.")
    reason: GapReason = Field(
        description="Why: more was written than is kept of an execution (`dropped`) or of all"
        " together (`evicted`), or the host's disk was full or failed."
    )


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
    sandbox: SandboxAnswer | None = Field(
        default=None, description="The sandbox with its walls, once it is made."
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
    refused_connections: list[str] = Field(
        description="Entries of an allow list that would permit connections that were refused."
    )


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
        "gap",
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
    gap: GapAnswer | None = None
    provisioned: ProvisionedAnswer | None = None
    exited: ExitedAnswer | None = None
    failed: FailedAnswer | None = None
    cancelled: CancelledAnswer | None = None
