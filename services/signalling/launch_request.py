"""What a caller asks a launch for, and the rules that hold before anything is created. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import astuple, dataclass
from datetime import timedelta

from signalling.description import check_offer
from signalling.execution import Command, TerminalSize
from signalling.sandbox import NO_LIMITS, Limits, NetworkPolicy
from signalling.sandbox_rules import check_wish
from signalling.snapshot import Source, Upstream
from signalling.source_rules import InvalidRequest, check_branch, check_source, check_text

MINIMUM_LEASE = timedelta(seconds=1)
MAXIMUM_LEASE = timedelta(hours=24)
DEFAULT_LEASE = timedelta(minutes=30)
MAXIMUM_ARGUMENTS = 4096
MAXIMUM_ARGUMENT_BYTES = 128 * 1024
MAXIMUM_ENVIRONMENT_BYTES = 128 * 1024

_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")


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
        check_branch("branch", request.branch)
    if request.command is not None:
        check_command(request.command)
    if request.lease is not None:
        check_lease(request.lease)
    check_wish(request.isolation, request.profile, request.limits, request.network)
    if request.offer:
        check_offer(request.offer)


def check_command(command: Command) -> None:
    """Raise InvalidRequest unless the command is within the limits of proto
    `fairlead.execution.v1.Command`.
    """
    if not command.arguments or not command.arguments[0]:
        raise InvalidRequest(
            "command.arguments",
            "The command names no program.",
            reason="command_invalid",
            remedy="Give the program and its arguments; leave the command out to run nothing.",
        )
    if len(command.arguments) > MAXIMUM_ARGUMENTS:
        raise InvalidRequest(
            "command.arguments",
            "The command has more than 4096 arguments.",
            reason="command_too_long",
        )
    total = 0
    for argument in command.arguments:
        check_text("command.arguments", argument, "command_invalid")
        total += len(argument.encode()) + 1
    if total > MAXIMUM_ARGUMENT_BYTES:
        raise InvalidRequest(
            "command.arguments",
            "The command's arguments are longer than 128 KiB together.",
            reason="command_too_long",
            remedy="Write them to a file, or send them on standard input.",
        )
    _check_environment(command)
    check_text("command.directory", command.directory, "directory_invalid")
    parts = command.directory.split("/")
    if command.directory.startswith("/") or ".." in parts or len(command.directory) > 4096:
        raise InvalidRequest(
            "command.directory",
            "The directory must be relative to the workspace and may not leave it.",
            reason="directory_invalid",
        )
    if command.timeout is not None and not (timedelta(0) < command.timeout <= timedelta(days=365)):
        raise InvalidRequest(
            "command.timeout",
            "The timeout must be more than zero and at most a year.",
            reason="timeout_invalid",
        )
    if not timedelta(0) <= command.grace <= timedelta(minutes=10):
        raise InvalidRequest(
            "command.grace",
            "The grace must not be negative and at most 10 minutes.",
            reason="grace_invalid",
        )
    if command.terminal is not None:
        check_terminal("command.terminal", command.terminal)


def check_terminal(field: str, size: TerminalSize) -> None:
    """Raise InvalidRequest unless a terminal can have this size."""
    if not (1 <= size.rows <= 65535 and 1 <= size.columns <= 65535):
        raise InvalidRequest(
            field,
            "A terminal has 1 to 65535 rows and columns.",
            reason="terminal_size_invalid",
        )


def _check_environment(command: Command) -> None:
    total = 0
    for name, value in command.environment.items():
        check_text("command.environment", value, "environment_invalid")
        if not _ENVIRONMENT_NAME.fullmatch(name):
            raise InvalidRequest(
                "command.environment",
                "The name of an environment variable must be letters, digits and underscores.",
                reason="environment_invalid",
            )
        total += len(name) + len(value.encode()) + 2
    if total > MAXIMUM_ENVIRONMENT_BYTES:
        raise InvalidRequest(
            "command.environment",
            "The environment is longer than 128 KiB.",
            reason="environment_invalid",
        )


def check_lease(lease: timedelta) -> None:
    """Raise InvalidRequest unless the lease is between 1 s and 24 h."""
    if not MINIMUM_LEASE <= lease <= MAXIMUM_LEASE:
        raise InvalidRequest(
            "lease", "The lease must be between 1 second and 24 hours.", reason="lease_invalid"
        )


def check_key(key: str) -> None:
    """Raise InvalidRequest unless the idempotency key has 1 to 255 printable ASCII characters."""
    if not _KEY.fullmatch(key):
        raise InvalidRequest(
            "idempotency_key",
            "The idempotency key must have 1 to 255 printable ASCII characters.",
            reason="idempotency_key_invalid",
        )
