"""What the launch half of the REST API takes and answers: the same fields as the protos, in JSON.

Ranges that the domain checks are only stated here, so that REST and gRPC refuse with the same
reason.
"""

from __future__ import annotations

import base64
import binascii
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from signalling.execution import Command, ExecutionState, ExitReason, OutputStream
from signalling.launch import CancelReason, LaunchState, Step, StepState
from signalling.launch_request import LaunchRequest
from signalling.snapshot import Changes, MissReason, Source


def _decoded(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("not base64") from error


_ENCODED = WithJsonSchema({"type": "string", "contentEncoding": "base64"})
EncodedBytes = Annotated[
    bytes,
    BeforeValidator(_decoded),
    PlainSerializer(lambda value: base64.b64encode(value).decode("ascii"), return_type=str),
    _ENCODED,
]
LeaseSeconds = Annotated[
    float,
    Field(ge=-1e9, le=1e9, allow_inf_nan=False),
    WithJsonSchema({"type": "number", "minimum": 1, "maximum": 86_400}),
]
TimeoutSeconds = Annotated[
    float,
    Field(ge=-1e9, le=1e9, allow_inf_nan=False),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 31_536_000}),
]


class Body(BaseModel):
    """A request's body or a part of it: unknown fields and near types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answer(BaseModel):
    """A part of an answer, read from the domain's values."""

    model_config = ConfigDict(from_attributes=True)


class ChangesBody(Body):
    """Uncommitted and untracked files as a tree, with a small thin pack of what is new in it."""

    tree: str = Field(description="Object id of the tree.")
    pack: EncodedBytes = Field(
        default=b"", description="Thin pack against the commit, at most 256 KiB."
    )

    def value(self) -> Changes:
        """Return the domain's value."""
        return Changes(tree=self.tree, pack=self.pack)


class SourceBody(Body):
    """What to check out."""

    project: str = Field(description="The caller's name for the project, 1 to 200 characters.")
    commit: str = Field(description="Full object id of the wanted commit.")
    object_format: str = Field(
        default="sha1", description="Object format.", json_schema_extra={"enum": ["sha1", "sha256"]}
    )
    branch: str = Field(default="", description="Branch at the client; empty when detached.")
    digest: str = Field(default="", description="Digest of the local heads; may be empty.")
    changes: ChangesBody | None = None

    def value(self) -> Source:
        """Return the domain's value."""
        return Source(
            project=self.project,
            commit=self.commit,
            object_format=self.object_format or "sha1",
            branch=self.branch,
            digest=self.digest,
            changes=None if self.changes is None else self.changes.value(),
        )


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
