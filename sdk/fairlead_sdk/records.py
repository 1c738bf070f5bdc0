"""Launches, executions and traces as the front door describes them."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime

from fairlead_sdk import json_form as form
from fairlead_sdk.json_form import JsonObject

TIMEOUT_EXIT_CODE = 124
_SIGNAL_BASE = 128
_KILLED_EXIT_CODE = _SIGNAL_BASE + 9
_LOST_EXIT_CODE = 69


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended.

    `reason` is `exited`, `signalled`, `timed_out`, `out_of_memory`, `limit_pids`, `limit_disk`,
    `released` or `host_lost`; `code` is absent unless it exited by itself, `signal` unless a signal
    ended it. `cpu_time` is in seconds, absent when nobody saw it end.
    """

    reason: str
    code: int | None
    signal: int | None
    last_sequence: int
    ended_at: datetime | None
    cpu_time: float | None = None
    peak_memory_bytes: int = 0

    @property
    def exit_code(self) -> int:
        """The exit code as a shell counts: 128 + n for signal n.

        124 for a timeout, 137 when the sandbox was released or a limit of it was reached, 69 when
        its host was lost.
        """
        if self.reason == "timed_out":
            return TIMEOUT_EXIT_CODE
        if self.code is not None:
            return self.code
        if self.signal is not None:
            return _SIGNAL_BASE + self.signal
        return _LOST_EXIT_CODE if self.reason == "host_lost" else _KILLED_EXIT_CODE

    @classmethod
    def read(cls, document: JsonObject) -> Exit:
        """Read the JSON form."""
        return cls(
            reason=form.text(document, "reason"),
            code=form.optional_number(document, "code"),
            signal=form.optional_number(document, "signal"),
            last_sequence=form.number(document, "last_sequence"),
            ended_at=form.time(document, "ended_at"),
            cpu_time=form.seconds(document, "cpu_time"),
            peak_memory_bytes=form.number(document, "peak_memory_bytes"),
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """Which step of a launch failed and why; `step` is empty when it was none of them."""

    step: str
    reason: str
    message: str
    remedy: str

    @classmethod
    def read(cls, document: JsonObject) -> Failure:
        """Read the JSON form."""
        return cls(
            step=form.text(document, "step"),
            reason=form.text(document, "reason"),
            message=form.text(document, "message"),
            remedy=form.text(document, "remedy"),
        )


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """A launch and how far it has come; what is not there yet is empty or `None`.

    `state` is `requested`, `provisioned`, `running`, `exited`, `failed` or `cancelled`.
    """

    launch_id: str
    state: str
    created_at: datetime
    ended_at: datetime | None
    released_at: datetime | None
    expires_at: datetime | None
    project: str
    commit: str
    branch: str
    arguments: tuple[str, ...]
    keep: bool
    host_id: str
    workspace_id: str
    sandbox_id: str
    isolation: str
    session_id: str
    execution_id: str
    exit: Exit | None
    failure: Failure | None
    trace_id: str
    document: JsonObject

    @property
    def is_held(self) -> bool:
        """Whether it has a sandbox that has not been given back."""
        return bool(self.sandbox_id) and self.released_at is None

    @classmethod
    def read(cls, document: JsonObject) -> LaunchRecord:
        """Read the JSON form."""
        exit_ = form.child(document, "exit")
        failure = form.child(document, "failure")
        return cls(
            launch_id=form.text(document, "launch_id"),
            state=form.text(document, "state"),
            created_at=form.time_or_epoch(document, "created_at"),
            ended_at=form.time(document, "ended_at"),
            released_at=form.time(document, "released_at"),
            expires_at=form.time(document, "expires_at"),
            project=form.text(document, "project"),
            commit=form.text(document, "commit"),
            branch=form.text(document, "branch"),
            arguments=form.texts(document, "arguments"),
            keep=form.flag(document, "keep"),
            host_id=form.text(document, "host_id"),
            workspace_id=form.text(document, "workspace_id"),
            sandbox_id=form.text(document, "sandbox_id"),
            isolation=form.text(document, "isolation"),
            session_id=form.text(document, "session_id"),
            execution_id=form.text(document, "execution_id"),
            exit=None if exit_ is None else Exit.read(exit_),
            failure=None if failure is None else Failure.read(failure),
            trace_id=form.text(document, "trace_id"),
            document=document,
        )


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """One command inside a sandbox; `state` is `running` or `exited`."""

    execution_id: str
    sandbox_id: str
    state: str
    arguments: tuple[str, ...]
    started_at: datetime
    exit: Exit | None
    document: JsonObject

    @classmethod
    def read(cls, document: JsonObject) -> ExecutionRecord:
        """Read the JSON form."""
        exit_ = form.child(document, "exit")
        return cls(
            execution_id=form.text(document, "execution_id"),
            sandbox_id=form.text(document, "sandbox_id"),
            state=form.text(document, "state"),
            arguments=form.texts(document, "arguments"),
            started_at=form.time_or_epoch(document, "started_at"),
            exit=None if exit_ is None else Exit.read(exit_),
            document=document,
        )


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """A piece of output; `stream` is `stdout` or `stderr`, `sequence` counts from 1."""

    execution_id: str
    sequence: int
    stream: str
    content: bytes

    @classmethod
    def read(cls, document: JsonObject) -> OutputRecord:
        """Read the JSON form; `ValueError` when the content is not base64."""
        try:
            content = base64.b64decode(form.text(document, "content"), validate=True)
        except binascii.Error as error:
            raise ValueError("output is not base64") from error
        return cls(
            execution_id=form.text(document, "execution_id"),
            sequence=form.number(document, "sequence"),
            stream=form.text(document, "stream"),
            content=content,
        )


@dataclass(frozen=True, slots=True)
class OutputGap:
    """Output that is missing, with `size` bytes; `reason` is `dropped` where the command wrote more
    than is kept of one, `evicted` where all commands did, `disk_full`, `disk_failed` or `unknown`.
    """

    first_sequence: int
    last_sequence: int
    size: int
    reason: str = "unknown"

    @classmethod
    def read(cls, document: JsonObject) -> OutputGap:
        """Read the JSON form."""
        return cls(
            first_sequence=form.number(document, "first_sequence"),
            last_sequence=form.number(document, "last_sequence"),
            size=form.number(document, "bytes"),
            reason=form.text(document, "reason") or "unknown",
        )


@dataclass(frozen=True, slots=True)
class Span:
    """One span of a trace; `service` is the room, `parent_span_id` is empty for a root."""

    span_id: str
    parent_span_id: str
    name: str
    service: str
    started_at: datetime
    ended_at: datetime
    failed: bool
    attributes: dict[str, str]

    @classmethod
    def read(cls, document: JsonObject) -> Span:
        """Read the JSON form."""
        attributes = form.child(document, "attributes") or {}
        return cls(
            span_id=form.text(document, "span_id"),
            parent_span_id=form.text(document, "parent_span_id"),
            name=form.text(document, "name"),
            service=form.text(document, "service"),
            started_at=form.time_or_epoch(document, "started_at"),
            ended_at=form.time_or_epoch(document, "ended_at"),
            failed=form.flag(document, "failed"),
            attributes={name: str(value) for name, value in attributes.items()},
        )


@dataclass(frozen=True, slots=True)
class Trace:
    """The spans of a launch that the span store holds, by start time."""

    trace_id: str
    spans: tuple[Span, ...]
    document: JsonObject

    @classmethod
    def read(cls, document: JsonObject) -> Trace:
        """Read the JSON form."""
        return cls(
            trace_id=form.text(document, "trace_id"),
            spans=tuple(Span.read(span) for span in form.children(document, "spans")),
            document=document,
        )

    @property
    def orphans(self) -> tuple[Span, ...]:
        """Spans whose parent is not here."""
        known = {span.span_id for span in self.spans}
        return tuple(
            span for span in self.spans if span.parent_span_id and span.parent_span_id not in known
        )

    @property
    def is_whole(self) -> bool:
        """Whether there is a root, a finished `launch.run`, and no span without its parent."""
        has_root = any(not span.parent_span_id for span in self.spans)
        has_work = any(span.name == "launch.run" for span in self.spans)
        return has_root and has_work and not self.orphans
