"""Requests out of JSON, and what the use cases know as JSON: the names are those of the protos."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Never

from chassis.ids import is_id
from chassis.limits import check_branch
from workspace_provisioner.errors import FieldInvalid
from workspace_provisioner.names import checked_name
from workspace_provisioner.origins import checked_upstream, with_origins
from workspace_provisioner.resident.commands import CommandRequest
from workspace_provisioner.sources import (
    Changes,
    Commits,
    Source,
    Tip,
    Upstream,
    checked_lease,
    checked_source,
    checked_tips,
)
from workspace_provisioner.workspaces import Freshness, Miss, Snapshot, Workspace

TENANT = "local"
"""Who uses a host over SSH is whoever has the account, so that there is one tenant."""

_LONGEST_SECONDS = 31_536_000.0
_MOST_ARGUMENTS = 100_000


class Fields:
    """Reads the fields of a JSON object; raises FieldInvalid for what is not of its form."""

    def __init__(self, document: Mapping[str, object]) -> None:
        self._document = document

    def text(self, name: str) -> str:
        """Return a text, empty when absent."""
        found = self._document.get(name, "")
        return found if isinstance(found, str) else _invalid(name, "must be a text")

    def content(self, name: str) -> bytes:
        """Return bytes that are written as base64, none when absent."""
        try:
            return base64.b64decode(self.text(name), validate=True)
        except binascii.Error:
            return _invalid(name, "must be base64")

    def number(self, name: str) -> int:
        """Return a number that is not negative, 0 when absent."""
        found = self._document.get(name, 0)
        if type(found) is int and found >= 0:
            return found
        return _invalid(name, "must be a number that is not negative")

    def flag(self, name: str) -> bool:
        """Return a truth value, false when absent."""
        found = self._document.get(name, False)
        return found if isinstance(found, bool) else _invalid(name, "must be true or false")

    def seconds(self, name: str) -> float | None:
        """Return a duration in seconds, None when absent."""
        found = self._document.get(name)
        if found is None:
            return None
        if (
            isinstance(found, int | float)
            and not isinstance(found, bool)
            and 0 < found <= _LONGEST_SECONDS
        ):
            return float(found)
        return _invalid(name, "must be a number of seconds")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts, empty when absent."""
        found = self._document.get(name, [])
        if not isinstance(found, list) or len(found) > _MOST_ARGUMENTS:
            return _invalid(name, "must be a list of texts")
        texts = tuple(each for each in found if isinstance(each, str))
        return texts if len(texts) == len(found) else _invalid(name, "must be a list of texts")

    def part(self, name: str) -> Fields | None:
        """Return an object inside, None when absent."""
        found = self._document.get(name)
        if found is None:
            return None
        return Fields(found) if isinstance(found, dict) else _invalid(name, "must be an object")

    def pairs(self, name: str) -> dict[str, str]:
        """Return names and texts, none when absent."""
        found = self._document.get(name, {})
        if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
            return _invalid(name, "must be an object of texts")
        return found

    def parts(self, name: str) -> list[Fields]:
        """Return a list of objects, empty when absent."""
        found = self._document.get(name, [])
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            return _invalid(name, "must be a list of objects")
        return [Fields(each) for each in found]


def _invalid(name: str, rule: str) -> Never:
    raise FieldInvalid(name, rule, remedy="Use the same version of fairlead on both ends.")


def source_of(fields: Fields) -> Source:
    """Return the checked source of a call, which has the form of the front door's."""
    found = fields.part("source") or Fields({})
    changes, commits, upstream = (found.part(n) for n in ("changes", "commits", "upstream"))
    source = checked_source(
        tenant=TENANT,
        project=found.text("project"),
        object_format=found.text("object_format"),
        commit=found.text("commit"),
        branch=found.text("branch"),
        digest=found.text("digest"),
        changes=Changes(changes.text("tree"), changes.content("pack")) if changes else None,
        commits=Commits(commits.texts("against"), commits.content("pack")) if commits else None,
        noticed=found.texts("noticed"),
        tags=_tips(found, "tags"),
    )
    return with_origins(
        source,
        upstream=_upstream(upstream) if upstream else None,
        submodules=found.flag("submodules"),
        origin=found.text("origin"),
    )


def _upstream(fields: Fields) -> Upstream:
    seconds = fields.seconds("max_age")
    age = None if seconds is None else timedelta(seconds=seconds)
    return checked_upstream(fields.text("url"), fields.text("branch"), age)


def tips_of(fields: Fields, source: Source) -> tuple[Tip, ...]:
    """Return the checked tips of an upload."""
    return checked_tips(_tips(fields, "tips"), source.key.object_format)


def _tips(fields: Fields, name: str) -> tuple[Tip, ...]:
    return tuple(Tip(each.text("ref"), each.text("commit")) for each in fields.parts(name))


def lease_of(fields: Fields) -> timedelta:
    """Return the checked lease."""
    seconds = fields.seconds("lease")
    return checked_lease(None if seconds is None else timedelta(seconds=seconds))


def branch_of(fields: Fields) -> str:
    """Return the checked branch, empty when none is named."""
    branch = fields.text("branch")
    return check_branch(branch) if branch else ""


def name_of(fields: Fields) -> str:
    """Return the checked name, empty when none is wanted."""
    name = fields.text("name")
    return checked_name(name) if name else ""


def workspace_id_of(fields: Fields) -> str:
    """Return an id that can be a path; raises FieldInvalid."""
    found = fields.text("workspace_id")
    return found if is_id("wsp", found) else _invalid("workspace_id", "is no id of a workspace")


def command_of(fields: Fields) -> CommandRequest:
    """Return the checked request for a command."""
    arguments = fields.texts("arguments")
    if not arguments or not arguments[0] or any("\0" in each for each in arguments):
        _invalid("arguments", "must begin with a program and hold no null bytes")
    environment = fields.pairs("environment")
    if any(not name or "=" in name or "\0" in name + text for name, text in environment.items()):
        _invalid("environment", "must hold names without '=' and no null bytes")
    return CommandRequest(
        arguments=arguments,
        environment=environment,
        directory=fields.text("directory"),
        takes_input=fields.flag("stdin"),
        seconds=fields.seconds("timeout"),
        stays=fields.flag("stays"),
    )


def outcome_form(outcome: Workspace | Miss, *, trees: Path, host_id: str) -> dict[str, object]:
    """Return a workspace or a miss as it is answered."""
    if isinstance(outcome, Miss):
        miss = {
            "reason": str(outcome.reason),
            "wanted": list(outcome.wanted),
            "tips": list(outcome.tips),
        }
        return {"miss": miss}
    return {"workspace": workspace_form(outcome, trees=trees, host_id=host_id)}


def workspace_form(workspace: Workspace, *, trees: Path, host_id: str) -> dict[str, object]:
    """Return a workspace as JSON; `path` is where its files are on the host."""
    freshness = workspace.freshness
    return {
        "workspace_id": workspace.workspace_id,
        "tenant": workspace.tenant,
        "state": str(workspace.state),
        "project": workspace.project,
        "commit": workspace.commit,
        "branch": workspace.branch,
        "host_id": host_id,
        "name": workspace.name,
        "rung": str(workspace.rung),
        "lfs_pointers": workspace.lfs_pointers,
        "tags_left_out": workspace.tags_left_out,
        "has_submodules": workspace.has_submodules,
        "created_at": _moment(workspace.created_at),
        "expires_at": _moment(workspace.expires_at),
        "path": str(trees / workspace.workspace_id),
        "freshness": _freshness_form(freshness) if freshness else None,
    }


def _freshness_form(freshness: Freshness) -> dict[str, object]:
    return {
        "branch": freshness.branch,
        "as_of": _moment(freshness.as_of) if freshness.as_of else None,
        "fallback": freshness.fallback,
        "reason": freshness.reason,
    }


def snapshot_form(snapshot: Snapshot, *, host_id: str) -> dict[str, object]:
    """Return a snapshot as JSON."""
    return {
        "snapshot_id": snapshot.snapshot_id,
        "project": snapshot.key.project,
        "host_id": host_id,
        "digest": snapshot.digest,
        "tips": [{"ref": tip.ref, "commit": tip.commit} for tip in snapshot.tips],
        "created_at": _moment(snapshot.created_at),
        "received_bytes": snapshot.received_bytes,
    }


def _moment(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
