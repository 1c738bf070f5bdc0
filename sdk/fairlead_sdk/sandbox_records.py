"""Sandboxes as the front door describes them, and what may be asked of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from fairlead_sdk import json_form as form
from fairlead_sdk.json_form import JsonObject


@dataclass(frozen=True, slots=True)
class Wall:
    """One thing that holds a sandbox in; `reason` says why where it does not stand."""

    name: str
    stands: bool
    reason: str

    @classmethod
    def read(cls, document: JsonObject) -> Wall:
        """Read the JSON form."""
        return cls(
            name=form.text(document, "name"),
            stands=form.flag(document, "stands"),
            reason=form.text(document, "reason"),
        )


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """An isolated place to execute in, with a lease.

    `state` is `requested`, `provisioned` or `released`; `limits` are those that are held, by name;
    `network` is `none`, `host` or `egress`, and `allow` what the last one lets through;
    `launch_id` is empty for a sandbox that has a lease of its own.
    """

    sandbox_id: str
    state: str
    isolation: str
    profile: str
    walls: tuple[Wall, ...]
    limits: Mapping[str, float]
    network: str
    allow: tuple[str, ...]
    host_id: str
    workspace_id: str
    launch_id: str
    created_at: datetime
    expires_at: datetime
    document: JsonObject

    @property
    def missing_walls(self) -> tuple[Wall, ...]:
        """The walls that do not stand."""
        return tuple(wall for wall in self.walls if not wall.stands)

    @classmethod
    def read(cls, document: JsonObject) -> SandboxRecord:
        """Read the JSON form."""
        limits = form.child(document, "limits") or {}
        network = form.child(document, "network") or {}
        return cls(
            sandbox_id=form.text(document, "sandbox_id"),
            state=form.text(document, "state"),
            isolation=form.text(document, "isolation"),
            profile=form.text(document, "profile"),
            walls=tuple(Wall.read(each) for each in form.children(document, "walls")),
            limits={
                name: float(value)
                for name, value in limits.items()
                if isinstance(value, int | float) and value
            },
            network=form.text(network, "mode"),
            allow=tuple(form.texts(network, "allow")),
            host_id=form.text(document, "host_id"),
            workspace_id=form.text(document, "workspace_id"),
            launch_id=form.text(document, "launch_id"),
            created_at=form.time_or_epoch(document, "created_at"),
            expires_at=form.time_or_epoch(document, "expires_at"),
            document=document,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRequest:
    """What a sandbox is to have; what is left out is its profile's.

    `limits` are by name: memory_bytes, processes, open_files, file_bytes, cpu_milli, disk_bytes,
    wall_time (seconds), output_bytes. `allow` goes with `network` = "egress".
    """

    isolation: str = ""
    profile: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    network: str = ""
    allow: Sequence[str] = ()

    def document(self) -> JsonObject:
        """Give the JSON form."""
        texts = {"isolation": self.isolation, "profile": self.profile}
        document: JsonObject = {name: text for name, text in texts.items() if text}
        if self.limits:
            document["limits"] = dict(self.limits)
        if self.network or self.allow:
            document["network"] = {"mode": self.network or "egress", "allow": list(self.allow)}
        return document
