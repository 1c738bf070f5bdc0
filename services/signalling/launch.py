"""A launch: what somebody asked for and how far it has come. Pure; every change is a new value.

States go requested -> provisioned | running -> exited | failed | cancelled; the last three are
terminal, and `released_at` is separate: a launch may be terminal and still hold its workspace and
sandbox (`keep`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from signalling.execution import Exit, OutputGap, OutputRecord
from signalling.sandbox import Sandbox
from signalling.snapshot import Freshness, MissReason


class LaunchState(StrEnum):
    """How far a launch has come."""

    REQUESTED = "requested"
    PROVISIONED = "provisioned"
    RUNNING = "running"
    EXITED = "exited"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Say whether no other state follows."""
        return self in (LaunchState.EXITED, LaunchState.FAILED, LaunchState.CANCELLED)


class Step(StrEnum):
    """One part of a launch."""

    WORKSPACE = "workspace"
    SANDBOX = "sandbox"
    CHANNEL = "channel"
    EXECUTION = "execution"


class StepState(StrEnum):
    """What became of a step."""

    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    UNDONE = "undone"


class CancelReason(StrEnum):
    """Why a launch was cancelled."""

    REQUESTED = "requested"
    LEASE_EXPIRED = "lease_expired"


class ImpossibleTransition(Exception):
    """A state change that the diagram does not have."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Which step failed and why; no step when it was none of them."""

    step: Step | None
    reason: str
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch, with the fields of the public API."""

    launch_id: str
    state: LaunchState
    created_at: datetime
    project: str
    commit: str
    branch: str
    arguments: tuple[str, ...]
    keep: bool
    trace_id: str
    expires_at: datetime | None
    ended_at: datetime | None = None
    released_at: datetime | None = None
    host_id: str = ""
    workspace_id: str = ""
    sandbox_id: str = ""
    isolation: str = ""
    session_id: str = ""
    execution_id: str = ""
    exit: Exit | None = None
    failure: Failure | None = None

    @property
    def held(self) -> bool:
        """Say whether it holds a workspace and a sandbox that can be worked in."""
        return bool(self.workspace_id and self.sandbox_id) and self.released_at is None

    @property
    def finished(self) -> bool:
        """Say whether nothing can happen to it any more."""
        return self.state.terminal and self.released_at is not None

    def workspace_made(self, workspace_id: str, *, commit: str, branch: str) -> Launch:
        """Return it with its workspace, whose commit may be an upstream's."""
        return replace(self, workspace_id=workspace_id, commit=commit, branch=branch)

    def sandbox_made(self, sandbox_id: str, isolation: str) -> Launch:
        """Return it with its sandbox."""
        return replace(self, sandbox_id=sandbox_id, isolation=isolation)

    def session_opened(self, session_id: str) -> Launch:
        """Return it with its session."""
        return replace(self, session_id=session_id)

    def provisioned(self) -> Launch:
        """Return it with every step done and nothing running."""
        self._expect(LaunchState.REQUESTED)
        return replace(self, state=LaunchState.PROVISIONED)

    def started(self, execution_id: str) -> Launch:
        """Return it with its command running."""
        self._expect(LaunchState.REQUESTED)
        return replace(self, state=LaunchState.RUNNING, execution_id=execution_id)

    def exited(self, exit_: Exit, at: datetime) -> Launch:
        """Return it with its command ended."""
        self._expect(LaunchState.RUNNING)
        return replace(self, state=LaunchState.EXITED, exit=exit_, ended_at=at)

    def failed(self, failure: Failure, at: datetime) -> Launch:
        """Return it failed."""
        self._expect(LaunchState.REQUESTED, LaunchState.PROVISIONED, LaunchState.RUNNING)
        return replace(self, state=LaunchState.FAILED, failure=failure, ended_at=at)

    def cancelled(self, at: datetime) -> Launch:
        """Return it cancelled."""
        self._expect(LaunchState.REQUESTED, LaunchState.PROVISIONED, LaunchState.RUNNING)
        return replace(self, state=LaunchState.CANCELLED, ended_at=at)

    def stopped(self, exit_: Exit) -> Launch:
        """Return it with the exit of a command that was ended from outside; its state does not
        change by that.
        """
        self._expect(LaunchState.RUNNING)
        return replace(self, exit=exit_)

    def renewed(self, expires_at: datetime) -> Launch:
        """Return it with a later end of its lease."""
        return replace(self, expires_at=expires_at)

    def released(self, at: datetime) -> Launch:
        """Return it holding nothing; a second release changes nothing."""
        if self.released_at is not None:
            return self
        return replace(self, released_at=at, expires_at=None)

    def _expect(self, *states: LaunchState) -> None:
        if self.state not in states:
            raise ImpossibleTransition(f"launch {self.launch_id} is {self.state}")


@dataclass(frozen=True, slots=True)
class LaunchSnapshot:
    """The launch as it was when the stream began; the first event of every stream."""

    launch: Launch


@dataclass(frozen=True, slots=True)
class StepChanged:
    """A step started, finished, failed or was undone; `elapsed` in seconds, absent when it has just
    started; `freshness` when the workspace is done and an upstream was asked for, `lfs_pointers`
    and `tags_left_out` when it is done, `sandbox` when that is.
    """

    step: Step
    state: StepState
    elapsed: float | None = None
    failure: Failure | None = None
    detail: str = ""
    freshness: Freshness | None = None
    lfs_pointers: int = 0
    tags_left_out: bool = False
    sandbox: Sandbox | None = None


@dataclass(frozen=True, slots=True)
class SnapshotMissed:
    """The host lacks objects; the launch waits for an upload with this token."""

    reason: MissReason
    wanted: tuple[str, ...]
    tips: tuple[str, ...]
    upload_token: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class OfferAnswered:
    """The gateway's answer to the offer."""

    session_id: str
    answer: str


@dataclass(frozen=True, slots=True)
class LaunchProvisioned:
    """All steps are done and there is no command (not terminal)."""

    launch: Launch


@dataclass(frozen=True, slots=True)
class LaunchExited:
    """The command has ended (terminal); `changed_files` is absent when they were not counted.

    `refused` are entries of an allow list that would permit connections that were refused.
    """

    exit: Exit
    changed_files: int | None
    discarded: bool
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """The launch failed (terminal)."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class LaunchCancelled:
    """The launch was cancelled (terminal)."""

    reason: CancelReason


Happening = (
    StepChanged
    | SnapshotMissed
    | OfferAnswered
    | LaunchProvisioned
    | LaunchExited
    | LaunchFailed
    | LaunchCancelled
)
"""What a control event tells; output and the first snapshot are not among them."""


@dataclass(frozen=True, slots=True)
class ControlEvent:
    """A happening with its number in the launch's journal, from 1 without gaps."""

    number: int
    occurred_at: datetime
    happening: Happening

    @property
    def terminal(self) -> bool:
        """Say whether the journal ends here."""
        return isinstance(self.happening, LaunchExited | LaunchFailed | LaunchCancelled)


@dataclass(frozen=True, slots=True)
class LaunchEvent:
    """One event as a watcher gets it; `cursor` is the position after it."""

    cursor: str
    occurred_at: datetime
    event: LaunchSnapshot | OutputRecord | OutputGap | Happening

    @property
    def type(self) -> str:
        """Return the name that the event has in the proto's oneof and in JSON."""
        match self.event:
            case LaunchSnapshot():
                return "snapshot"
            case OutputRecord():
                return "output"
            case OutputGap():
                return "gap"
            case StepChanged():
                return "step"
            case SnapshotMissed():
                return "miss"
            case OfferAnswered():
                return "answer"
            case LaunchProvisioned():
                return "provisioned"
            case LaunchExited():
                return "exited"
            case LaunchFailed():
                return "failed"
            case LaunchCancelled():
                return "cancelled"

    @property
    def terminal(self) -> bool:
        """Say whether the stream ends here."""
        return isinstance(self.event, LaunchExited | LaunchFailed | LaunchCancelled)
