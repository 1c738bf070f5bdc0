"""What a caller asks a launch for, and the rules that hold before anything is created. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import timedelta

from chassis.errors import InvalidArgument
from signalling.description import check_offer
from signalling.execution import Command
from signalling.snapshot import Changes, Source, Tip

MINIMUM_LEASE = timedelta(seconds=1)
MAXIMUM_LEASE = timedelta(hours=24)
DEFAULT_LEASE = timedelta(minutes=30)
MAXIMUM_ARGUMENTS = 4096
MAXIMUM_ARGUMENT_BYTES = 128 * 1024
MAXIMUM_ENVIRONMENT_BYTES = 128 * 1024
MAXIMUM_INLINE_PACK_BYTES = 256 * 1024
MAXIMUM_TIPS = 4096

_HEX_LENGTHS = {"sha1": 40, "sha256": 64}
_HEX = re.compile(r"[0-9a-f]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ISOLATION = re.compile(r"[a-z][a-z0-9-]{0,31}")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_REF_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")
_MAXIMUM_REF_BYTES = 244


class InvalidRequest(InvalidArgument):
    """A field of a request breaks a rule; `fields["field"]` names it."""

    def __init__(
        self,
        field: str,
        message: str,
        *,
        reason: str,
        remedy: str = "Correct the field and send the request again.",
    ) -> None:
        super().__init__(message, reason=reason, remedy=remedy, fields={"field": field})


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to run, on which snapshot, with which offer; no command means that the launch stays
    provisioned.
    """

    source: Source
    branch: str = ""
    command: Command | None = None
    keep: bool = False
    lease: timedelta | None = None
    isolation: str = ""
    offer: str = ""

    @property
    def workspace_branch(self) -> str:
        """Return the branch that the workspace gets; empty when HEAD is detached."""
        return self.branch or self.source.branch

    @property
    def held_for(self) -> timedelta:
        """Return the lease, with its default."""
        return self.lease if self.lease is not None else DEFAULT_LEASE

    def fingerprint(self) -> str:
        """Return a digest that is equal for equal requests, however they were written."""
        source, command = self.source, self.command
        changes = source.changes
        canonical = [
            [source.project, source.object_format, source.commit, source.branch, source.digest],
            None if changes is None else [changes.tree, hashlib.sha256(changes.pack).hexdigest()],
            self.branch,
            None
            if command is None
            else [
                list(command.arguments),
                sorted(command.environment.items()),
                command.directory,
                command.stdin,
                None if command.timeout is None else command.timeout.total_seconds(),
            ],
            self.keep,
            self.held_for.total_seconds(),
            self.isolation,
            self.offer,
        ]
        return hashlib.sha256(json.dumps(canonical).encode()).hexdigest()


def check_request(request: LaunchRequest) -> None:
    """Raise InvalidRequest unless the whole request can be carried out as far as its text tells."""
    check_source(request.source)
    if request.branch:
        check_branch("branch", request.branch)
    if request.command is not None:
        check_command(request.command)
    if request.lease is not None:
        check_lease(request.lease)
    if request.isolation and not _ISOLATION.fullmatch(request.isolation):
        raise InvalidRequest(
            "isolation",
            "The isolation is not a name of lower-case letters, digits and hyphens.",
            reason="isolation_invalid",
            remedy="Leave it out for the host's best, or name one that `GET /v1/hosts` lists.",
        )
    if request.offer:
        check_offer(request.offer)


def check_source(source: Source) -> None:
    """Raise InvalidRequest unless it names a project, full object ids and valid branches."""
    _text("source.project", source.project, "project_invalid")
    if not 1 <= len(source.project) <= 200 or _CONTROL.search(source.project):
        raise InvalidRequest(
            "source.project",
            "The project must have 1 to 200 characters and no control characters.",
            reason="project_invalid",
        )
    if source.object_format not in _HEX_LENGTHS:
        raise InvalidRequest(
            "source.object_format",
            "The object format must be sha1 or sha256.",
            reason="object_format_invalid",
        )
    _object_id("source.commit", source.commit, source.object_format, "commit_invalid")
    if source.branch:
        check_branch("source.branch", source.branch)
    if source.digest and not _DIGEST.fullmatch(source.digest):
        raise InvalidRequest(
            "source.digest",
            "The digest must be 64 lower-case hexadecimal digits, or empty.",
            reason="digest_invalid",
        )
    if source.changes is not None:
        _check_changes(source.changes, source.object_format)


def _check_changes(changes: Changes, object_format: str) -> None:
    _object_id("source.changes.tree", changes.tree, object_format, "tree_invalid")
    if len(changes.pack) > MAXIMUM_INLINE_PACK_BYTES:
        raise InvalidRequest(
            "source.changes.pack",
            "The pack of the changes is larger than 256 KiB.",
            reason="changes_too_large",
            remedy="Send the tree without the pack; the launch asks for an upload.",
        )


def check_branch(field: str, branch: str) -> None:
    """Raise InvalidRequest unless git takes `branch` as a branch name (git-check-ref-format(1),
    --branch).
    """
    _text(field, branch, "branch_invalid")
    if branch in ("@", "HEAD") or branch.startswith("-") or not is_ref(branch):
        raise InvalidRequest(
            field,
            "The branch is not a name that git allows.",
            reason="branch_invalid",
            remedy="See `git check-ref-format`: no `..`, spaces, `~^:?*[\\`, or a hyphen in front.",
        )


def is_ref(name: str) -> bool:
    """Say whether git takes `name` as (part of) a ref name."""
    return not (
        not name
        or len(name.encode()) > _MAXIMUM_REF_BYTES
        or _REF_FORBIDDEN.search(name)
        or name.startswith("/")
        or name.endswith(("/", "."))
        or any(part.startswith(".") or part.endswith(".lock") for part in name.split("/"))
    )


def check_tips(tips: tuple[Tip, ...], object_format: str) -> None:
    """Raise InvalidRequest unless every tip is a ref under refs/ with a full object id."""
    if len(tips) > MAXIMUM_TIPS:
        raise InvalidRequest("tips", "An upload names at most 4096 tips.", reason="too_many_tips")
    for tip in tips:
        _text("tips.ref", tip.ref, "tip_invalid")
        if not tip.ref.startswith("refs/") or not is_ref(tip.ref):
            raise InvalidRequest(
                "tips.ref",
                "A tip must be the full name of a ref, such as refs/heads/main.",
                reason="tip_invalid",
            )
        _object_id("tips.commit", tip.commit, object_format, "tip_invalid")


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
        _text("command.arguments", argument, "command_invalid")
        total += len(argument.encode()) + 1
    if total > MAXIMUM_ARGUMENT_BYTES:
        raise InvalidRequest(
            "command.arguments",
            "The command's arguments are longer than 128 KiB together.",
            reason="command_too_long",
            remedy="Write them to a file, or send them on standard input.",
        )
    _check_environment(command)
    _text("command.directory", command.directory, "directory_invalid")
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


def _check_environment(command: Command) -> None:
    total = 0
    for name, value in command.environment.items():
        _text("command.environment", value, "environment_invalid")
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


def _object_id(field: str, text: str, object_format: str, reason: str) -> None:
    if len(text) != _HEX_LENGTHS[object_format] or not _HEX.fullmatch(text):
        raise InvalidRequest(
            field,
            f"An object id of {object_format} is {_HEX_LENGTHS[object_format]} lower-case "
            "hexadecimal digits.",
            reason=reason,
        )


def _text(field: str, text: str, reason: str) -> None:
    """Refuse what no file system, program or UTF-8 message can carry: NUL and lone surrogates."""
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidRequest(
            field, "The text holds a character that cannot be carried.", reason=reason
        )
