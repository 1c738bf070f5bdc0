"""What a caller asks a launch for, and the rules that hold before anything is created. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple, dataclass
from datetime import timedelta

from chassis.limits import check_branch, check_name, check_size
from fairlead_limits import table
from signalling.description import check_offer
from signalling.execution import Command, TerminalSize
from signalling.sandbox import NO_LIMITS, Limits, NetworkPolicy
from signalling.sandbox_rules import check_wish
from signalling.snapshot import Source, Upstream
from signalling.source_rules import InvalidRequest, check_source, check_text

DEFAULT_LEASE = timedelta(seconds=table.DEFAULT_LEASE_SECONDS)


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to run, on which snapshot, with which offer; no command means that the launch stays
    provisioned.

    Either there is a source, or a `workspace_id` of what is there already and stays.
    """

    source: Source | None = None
    branch: str = ""
    command: Command | None = None
    keep: bool = False
    lease: timedelta | None = None
    isolation: str = ""
    offer: str = ""
    limits: Limits = NO_LIMITS
    profile: str = ""
    network: NetworkPolicy | None = None
    workspace_id: str = ""

    @property
    def workspace_branch(self) -> str:
        """Return the branch that the workspace gets; empty when HEAD is detached."""
        return self.branch or (self.source.branch if self.source is not None else "")

    @property
    def held_for(self) -> timedelta:
        """Return the lease, with its default."""
        return self.lease if self.lease is not None else DEFAULT_LEASE

    def fingerprint(self) -> str:
        """Return a digest that is equal for equal requests, however they were written."""
        command = self.command
        canonical = [
            _source(self.source),
            self.workspace_id,
            self.branch,
            None
            if command is None
            else [
                list(command.arguments),
                sorted(command.environment.items()),
                command.directory,
                command.stdin,
                None if command.timeout is None else command.timeout.total_seconds(),
                _terminal(command.terminal),
                command.on_full,
                command.grace.total_seconds(),
            ],
            self.keep,
            self.held_for.total_seconds(),
            self.isolation,
            self.offer,
            self.profile,
            astuple(self.limits),
            None if self.network is None else [self.network.mode, list(self.network.allow)],
        ]
        return hashlib.sha256(json.dumps(canonical).encode()).hexdigest()


def _source(source: Source | None) -> list[object] | None:
    if source is None:
        return None
    changes = source.changes
    return [
        [source.project, source.object_format, source.commit, source.branch, source.digest],
        None if changes is None else [changes.tree, hashlib.sha256(changes.pack).hexdigest()],
        _upstream(source.upstream),
        source.submodules,
        source.origin,
    ]


def _upstream(upstream: Upstream | None) -> list[object] | None:
    if upstream is None:
        return None
    age = upstream.max_age
    return [upstream.url, upstream.branch, None if age is None else age.total_seconds()]


def _terminal(size: TerminalSize | None) -> list[int] | None:
    return None if size is None else [size.rows, size.columns]


def check_request(request: LaunchRequest) -> None:
    """Raise InvalidRequest unless the whole request can be carried out as far as its text tells."""
    if request.source is None and not request.workspace_id:
        raise InvalidRequest(
            "source",
            "The launch names neither a source nor a workspace.",
            reason="source_required",
            remedy="Send one of them.",
        )
    if request.workspace_id and (request.source is not None or request.branch):
        raise InvalidRequest(
            "workspace_id",
            "A launch into a workspace takes no source and no branch: they are the workspace's.",
            reason="workspace_conflict",
            remedy="Leave out the workspace, or source and branch.",
        )
    if request.source is not None:
        check_source(request.source)
    if request.branch:
        check_branch(request.branch, "branch")
    if request.command is not None:
        check_command(request.command)
    if request.lease is not None:
        check_lease(request.lease)
    check_wish(request.isolation, request.profile, request.limits, request.network)
    if request.offer:
        check_offer(request.offer)


def check_command(command: Command) -> None:
    """Raise InvalidRequest or LimitBroken unless a host could run the command."""
    if not command.arguments or not command.arguments[0]:
        raise InvalidRequest(
            "command.arguments",
            "The command names no program.",
            reason="command_invalid",
            remedy="Give the program and its arguments; leave the command out to run nothing.",
        )
    check_size(table.ARGUMENTS, len(command.arguments))
    for argument in command.arguments:
        check_text("command.arguments", argument, "command_invalid")
    check_size(table.ARGUMENT_BYTES, sum(len(each.encode()) + 1 for each in command.arguments))
    for name, value in command.environment.items():
        check_name(table.VARIABLE, name)
        check_text("command.environment", value, "environment_invalid")
    size = sum(len(name) + len(text.encode()) + 2 for name, text in command.environment.items())
    check_size(table.ENVIRONMENT_BYTES, size)
    check_text("command.directory", command.directory, "directory_invalid")
    check_size(table.DIRECTORY_BYTES, len(command.directory.encode()))
    if command.directory.startswith("/") or ".." in command.directory.split("/"):
        raise InvalidRequest(
            "command.directory",
            "The directory must be relative to the workspace and may not leave it.",
            reason="directory_invalid",
        )
    if command.timeout is not None:
        check_size(table.TIMEOUT, command.timeout.total_seconds())
    check_size(table.GRACE, command.grace.total_seconds())
    if command.terminal is not None:
        check_terminal("command.terminal", command.terminal)


def check_terminal(field: str, size: TerminalSize) -> None:
    """Raise LimitBroken unless a terminal can have this size."""
    check_size(table.TERMINAL_CELLS, size.rows, field)
    check_size(table.TERMINAL_CELLS, size.columns, field)


def check_lease(lease: timedelta) -> None:
    """Raise LimitBroken unless something can be leased for so long."""
    check_size(table.LEASE, lease.total_seconds())


def check_key(key: str) -> None:
    """Raise LimitBroken unless the text can be an idempotency key."""
    check_name(table.IDEMPOTENCY_KEY, key)
