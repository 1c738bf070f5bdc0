"""The way back from `launch_json`: what the store keeps, as values again. Pure; raises ValueError
on anything else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta

from signalling.execution import Exit, ExitReason
from signalling.host import Host
from signalling.launch import (
    CancelReason,
    ControlEvent,
    Failure,
    Happening,
    Launch,
    LaunchCancelled,
    LaunchExited,
    LaunchFailed,
    LaunchProvisioned,
    LaunchState,
    OfferAnswered,
    SnapshotMissed,
    Step,
    StepChanged,
    StepState,
)
from signalling.launch_record import LaunchRecord
from signalling.sandbox import (
    Fence,
    Limits,
    NetworkMode,
    NetworkPolicy,
    Sandbox,
    SandboxState,
    Wall,
)
from signalling.snapshot import Freshness, MissReason

_WHOLE_LIMITS = (
    "memory_bytes",
    "processes",
    "open_files",
    "file_bytes",
    "cpu_milli",
    "disk_bytes",
    "output_bytes",
)


class _Fields:
    """Typed access to a JSON object."""

    def __init__(self, value: object) -> None:
        if not isinstance(value, Mapping):
            raise ValueError("not an object")
        self._fields: Mapping[str, object] = value

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str):
            raise ValueError(f"{name} is not text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._fields.get(name)
        if not isinstance(value, list):
            raise ValueError(f"{name} is not a list")
        return tuple(str(item) for item in value)

    def optional_texts(self, name: str) -> tuple[str, ...]:
        return self.texts(name) if name in self._fields else ()

    def objects(self, name: str) -> tuple[_Fields, ...]:
        value = self._fields.get(name)
        if not isinstance(value, list):
            raise ValueError(f"{name} is not a list")
        return tuple(_Fields(item) for item in value)

    def number(self, name: str) -> int:
        value = self._fields.get(name)
        if not isinstance(value, int):
            raise ValueError(f"{name} is not a whole number")
        return value

    def optional_number(self, name: str) -> int | None:
        return None if self._fields.get(name) is None else self.number(name)

    def seconds(self, name: str) -> float:
        value = self._fields.get(name)
        if not isinstance(value, int | float):
            raise ValueError(f"{name} is not a number")
        return float(value)

    def optional_seconds(self, name: str) -> float | None:
        return None if self._fields.get(name) is None else self.seconds(name)

    def flag(self, name: str) -> bool:
        return self._fields.get(name) is True

    def time(self, name: str) -> datetime:
        return datetime.fromisoformat(self.text(name))

    def optional_time(self, name: str) -> datetime | None:
        return None if self._fields.get(name) is None else self.time(name)

    def object(self, name: str) -> _Fields:
        return _Fields(self._fields.get(name))

    def optional_object(self, name: str) -> _Fields | None:
        return None if self._fields.get(name) is None else self.object(name)


def _exit(fields: _Fields) -> Exit:
    cpu_seconds = fields.optional_seconds("cpu_time")
    return Exit(
        reason=ExitReason(fields.text("reason")),
        code=fields.optional_number("code"),
        signal=fields.optional_number("signal"),
        last_sequence=fields.number("last_sequence"),
        ended_at=fields.time("ended_at"),
        cpu_time=None if cpu_seconds is None else timedelta(seconds=cpu_seconds),
        peak_memory_bytes=fields.optional_number("peak_memory_bytes") or 0,
    )


def _freshness(fields: _Fields | None) -> Freshness | None:
    if fields is None:
        return None
    return Freshness(
        branch=fields.text("branch"),
        as_of=fields.optional_time("as_of"),
        fallback=fields.flag("fallback"),
        reason=fields.text("reason"),
    )


def _sandbox(fields: _Fields | None) -> Sandbox | None:
    if fields is None:
        return None
    network, limits = fields.optional_object("network"), fields.object("limits")
    fence = fields.object("fence")
    return Sandbox(
        sandbox_id=fields.text("sandbox_id"),
        state=SandboxState(fields.text("state")),
        isolation=fields.text("isolation"),
        profile=fields.text("profile"),
        limits=Limits(
            **{each: limits.number(each) for each in _WHOLE_LIMITS},
            wall_time=limits.seconds("wall_time"),
        ),
        network=None
        if network is None
        else NetworkPolicy(NetworkMode(network.text("mode")), network.texts("allow")),
        walls=tuple(
            Wall(wall.text("name"), wall.flag("stands"), wall.text("reason"))
            for wall in fields.objects("walls")
        ),
        host_id=fields.text("host_id"),
        workspace_id=fields.text("workspace_id"),
        launch_id=fields.text("launch_id"),
        fence=Fence(fence.number("epoch"), fence.number("counter")),
        created_at=fields.time("created_at"),
        expires_at=fields.time("expires_at"),
    )


def _failure(fields: _Fields) -> Failure:
    step = fields.optional_object("failure")
    if step is None:
        raise ValueError("failure is absent")
    return _failure_of(step)


def _failure_of(fields: _Fields) -> Failure:
    try:
        step: Step | None = Step(fields.text("step"))
    except ValueError:
        step = None
    return Failure(
        step=step,
        reason=fields.text("reason"),
        message=fields.text("message"),
        remedy=fields.text("remedy"),
    )


def _launch(fields: _Fields) -> Launch:
    exit_, failure = fields.optional_object("exit"), fields.optional_object("failure")
    return Launch(
        launch_id=fields.text("launch_id"),
        state=LaunchState(fields.text("state")),
        created_at=fields.time("created_at"),
        ended_at=fields.optional_time("ended_at"),
        released_at=fields.optional_time("released_at"),
        expires_at=fields.optional_time("expires_at"),
        project=fields.text("project"),
        commit=fields.text("commit"),
        branch=fields.text("branch"),
        arguments=fields.texts("arguments"),
        keep=fields.flag("keep"),
        host_id=fields.text("host_id"),
        workspace_id=fields.text("workspace_id"),
        sandbox_id=fields.text("sandbox_id"),
        isolation=fields.text("isolation"),
        session_id=fields.text("session_id"),
        execution_id=fields.text("execution_id"),
        exit=None if exit_ is None else _exit(exit_),
        failure=None if failure is None else _failure_of(failure),
        trace_id=fields.text("trace_id"),
    )


def _host(fields: _Fields) -> Host:
    return Host(
        host_id=fields.text("host_id"),
        workspace_address=fields.text("workspace_address"),
        sandbox_address=fields.text("sandbox_address"),
        isolation=fields.texts("isolation"),
    )


def _happening(name: str, fields: _Fields) -> Happening:
    match name:
        case "step":
            failure = fields.optional_object("failure")
            return StepChanged(
                step=Step(fields.text("step")),
                state=StepState(fields.text("state")),
                elapsed=fields.optional_seconds("elapsed"),
                failure=None if failure is None else _failure_of(failure),
                detail=fields.text("detail"),
                freshness=_freshness(fields.optional_object("freshness")),
                lfs_pointers=fields.optional_number("lfs_pointers") or 0,
                tags_left_out=fields.flag("tags_left_out"),
                sandbox=_sandbox(fields.optional_object("sandbox")),
            )
        case "miss":
            return SnapshotMissed(
                reason=MissReason(fields.text("reason")),
                wanted=fields.texts("wanted"),
                tips=fields.texts("tips"),
                upload_token=fields.text("upload_token"),
                expires_at=fields.time("expires_at"),
            )
        case "answer":
            return OfferAnswered(fields.text("session_id"), fields.text("answer"))
        case "provisioned":
            return LaunchProvisioned(_launch(fields.object("launch")))
        case "exited":
            return LaunchExited(
                _exit(fields.object("exit")),
                fields.optional_number("changed_files"),
                fields.flag("discarded"),
                fields.optional_texts("refused_connections"),
            )
        case "failed":
            return LaunchFailed(_failure(fields))
        case "cancelled":
            return LaunchCancelled(CancelReason(fields.text("reason")))
        case _:
            raise ValueError("unknown event")


def parse_control(text: str | bytes) -> ControlEvent:
    """Read what `control_json` gave."""
    fields = _Fields(json.loads(text))
    name = fields.text("type")
    return ControlEvent(
        number=fields.number("number"),
        occurred_at=fields.time("occurred_at"),
        happening=_happening(name, fields.object(name)),
    )


def parse_record(text: str | bytes) -> LaunchRecord:
    """Read what `record_json` gave."""
    fields = _Fields(json.loads(text))
    return LaunchRecord(
        tenant=fields.text("tenant"),
        owner=fields.text("owner"),
        fingerprint=fields.text("fingerprint"),
        version=fields.number("version"),
        last_event=fields.number("last_event"),
        lease=timedelta(seconds=fields.seconds("lease")),
        has_command=fields.flag("has_command"),
        has_channel=fields.flag("has_channel"),
        workspace_lent=fields.flag("workspace_lent"),
        traceparent=fields.text("traceparent"),
        host=_host(fields.object("host")),
        launch=_launch(fields.object("launch")),
    )


def parse_host(text: str | bytes) -> Host:
    """Read what `host_json` gave."""
    return _host(_Fields(json.loads(text)))
