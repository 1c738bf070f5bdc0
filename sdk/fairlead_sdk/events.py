"""The typed events of a launch, read from their JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from fairlead_sdk import json_form as form
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.records import Exit, Failure, LaunchRecord, OutputGap, OutputRecord
from fairlead_sdk.workspace_records import Freshness


@dataclass(frozen=True, slots=True)
class StepChanged:
    """A step started, finished, failed or was undone.

    `step` is `workspace`, `sandbox`, `channel` or `execution`; `state` is `started`, `done`,
    `failed` or `undone`; `elapsed` is in seconds, absent when it has just started; `freshness`
    comes with a workspace that is done, when an upstream was asked for; `lfs_pointers` counts its
    files whose content is with Git LFS; `tags_left_out` says that the host lacks what new tags lead
    to, so that the next launch sends them again.
    """

    step: str
    state: str
    elapsed: float | None
    failure: Failure | None
    detail: str
    freshness: Freshness | None = None
    lfs_pointers: int = 0
    tags_left_out: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotMissed:
    """The host lacks objects, and the launch waits for an upload until `expires_at`."""

    reason: str
    wanted: tuple[str, ...]
    tips: tuple[str, ...]
    upload_token: str
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class OfferAnswered:
    """The gateway's answer to the offer, an SDP description."""

    session_id: str
    answer: str


@dataclass(frozen=True, slots=True)
class LaunchSnapshot:
    """The launch as it was when the stream began."""

    launch: LaunchRecord


@dataclass(frozen=True, slots=True)
class LaunchProvisioned:
    """All steps are done and there is no command."""

    launch: LaunchRecord


@dataclass(frozen=True, slots=True)
class LaunchExited:
    """The command has ended; `changed_files` is absent when they could not be counted.

    `refused_connections` are entries of an allow list that would permit what the network refused.
    """

    exit: Exit
    changed_files: int | None
    discarded: bool
    refused_connections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchStopped:
    """The launch failed, for the reason in `failure`."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class LaunchWithdrawn:
    """The launch was cancelled; `reason` is `requested` or `lease_expired`."""

    reason: str


Happening: TypeAlias = (
    LaunchSnapshot
    | StepChanged
    | SnapshotMissed
    | OfferAnswered
    | OutputRecord
    | OutputGap
    | LaunchProvisioned
    | LaunchExited
    | LaunchStopped
    | LaunchWithdrawn
)
TERMINAL = (LaunchExited, LaunchStopped, LaunchWithdrawn)


@dataclass(frozen=True, slots=True)
class LaunchEvent:
    """One thing that happened to a launch; a stream goes on after `cursor`.

    `document` is the event as it came.
    """

    cursor: str
    occurred_at: datetime
    happening: Happening
    document: JsonObject

    @property
    def is_terminal(self) -> bool:
        """Whether it is the last one of its launch."""
        return isinstance(self.happening, TERMINAL)


def read_event(document: JsonObject) -> LaunchEvent | None:
    """Read an event; `None` for a type that this version does not know."""
    name = form.text(document, "type")
    fields = form.child(document, name)
    happening = None if fields is None else _happening(name, fields)
    if happening is None:
        return None
    return LaunchEvent(
        cursor=form.text(document, "cursor"),
        occurred_at=form.time_or_epoch(document, "occurred_at"),
        happening=happening,
        document=document,
    )


def _happening(name: str, fields: JsonObject) -> Happening | None:
    match name:
        case "snapshot":
            return LaunchSnapshot(LaunchRecord.read(form.child(fields, "launch") or fields))
        case "step":
            failure = form.child(fields, "failure")
            return StepChanged(
                step=form.text(fields, "step"),
                state=form.text(fields, "state"),
                elapsed=form.seconds(fields, "elapsed"),
                failure=None if failure is None else Failure.read(failure),
                detail=form.text(fields, "detail"),
                freshness=Freshness.read(form.child(fields, "freshness")),
                lfs_pointers=form.number(fields, "lfs_pointers"),
                tags_left_out=form.flag(fields, "tags_left_out"),
            )
        case "miss":
            return SnapshotMissed(
                reason=form.text(fields, "reason"),
                wanted=form.texts(fields, "wanted"),
                tips=form.texts(fields, "tips"),
                upload_token=form.text(fields, "upload_token"),
                expires_at=form.time(fields, "expires_at"),
            )
        case "answer":
            return OfferAnswered(
                session_id=form.text(fields, "session_id"), answer=form.text(fields, "answer")
            )
        case "output":
            return OutputRecord.read(fields)
        case "gap":
            return OutputGap.read(fields)
        case _:
            return _milestone(name, fields)


def _milestone(name: str, fields: JsonObject) -> Happening | None:
    match name:
        case "provisioned":
            return LaunchProvisioned(LaunchRecord.read(form.child(fields, "launch") or {}))
        case "exited":
            return LaunchExited(
                exit=Exit.read(form.child(fields, "exit") or {}),
                changed_files=form.optional_number(fields, "changed_files"),
                discarded=form.flag(fields, "discarded"),
                refused_connections=form.texts(fields, "refused_connections"),
            )
        case "failed":
            return LaunchStopped(Failure.read(form.child(fields, "failure") or {}))
        case "cancelled":
            return LaunchWithdrawn(form.text(fields, "reason"))
        case _:
            return None
