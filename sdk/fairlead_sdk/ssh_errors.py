"""What can go wrong with a host over SSH, each with its own reason and a remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairlead_sdk.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    FairleadError,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    class_of_reason,
)

NO_PYTHON_STATUS = 97
OLD_PYTHON_STATUS = 98
_SSH_FAILED_STATUS = 255


class AddressInvalid(InvalidArgument):
    """The address of a host is not of its form."""

    def __init__(self, address: str, rule: str) -> None:
        super().__init__(
            f"{address!r} is no address of a host: {rule}.",
            reason="host_invalid",
            remedy="Write ssh://user@host[:port]/directory, or /~/directory below the home there.",
        )


class SshMissing(FailedPrecondition):
    """There is no ssh program on this machine."""

    def __init__(self, program: str) -> None:
        super().__init__(
            f"There is no {program!r} on this machine's path.",
            reason="ssh_missing",
            remedy="Install OpenSSH's client, or name another program in FAIRLEAD_SSH.",
        )


class ProgramMissing(FailedPrecondition):
    """The sources of the program that is sent to a host are not installed here."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"The sources of {package} are not installed here; a host over SSH needs them.",
            reason="resident_missing",
            remedy="pip install fairlead",
        )


def _words(destination: str, port: int) -> str:
    """Give what ssh is told of a host; `port` 0 is the one that it takes by itself."""
    return f"-p {port} {destination}" if port else destination


class HostKeyUnknown(PermissionDenied):
    """ssh does not know the host's key yet."""

    def __init__(self, destination: str, port: int = 0) -> None:
        super().__init__(
            f"The key of {destination} is not known here.",
            reason="host_key_unknown",
            remedy=f"Connect once with `ssh {_words(destination, port)}` and compare the key.",
        )


class HostKeyChanged(PermissionDenied):
    """The host shows another key than the one that ssh knows."""

    def __init__(self, destination: str, port: int = 0) -> None:
        host = destination.rpartition("@")[2]
        known = f"'[{host}]:{port}'" if port else host
        super().__init__(
            f"{destination} shows another key than the one that is known here.",
            reason="host_key_changed",
            remedy=f"Find out why; it may be another machine. Then: ssh-keygen -R {known}",
        )


class SshUnauthorized(Unauthenticated):
    """The host does not let this user in."""

    def __init__(self, destination: str, port: int = 0) -> None:
        super().__init__(
            f"{destination} lets none of your keys in.",
            reason="ssh_unauthorized",
            remedy=f"Make `ssh -o BatchMode=yes {_words(destination, port)} true` work:"
            " ssh-copy-id, ssh-add.",
        )


class SshUnreachable(Unavailable):
    """No connection to the host could be made."""

    def __init__(self, destination: str, cause: str, port: int = 0) -> None:
        super().__init__(
            f"{destination} cannot be reached: {cause}.",
            reason="ssh_unreachable",
            remedy=f"Check the address and the network: ssh {_words(destination, port)} true",
        )


class HostUnusable(Unavailable):
    """The host lacks what every host needs."""


class PythonMissing(HostUnusable):
    """The host has no Python."""

    def __init__(self, destination: str) -> None:
        super().__init__(
            f"{destination} has no Python.",
            reason="python_missing",
            remedy="Install Python 3.11 or later on the host, as python3 on its path.",
        )


class PythonTooOld(HostUnusable):
    """The host's Python is too old."""

    def __init__(self, destination: str) -> None:
        super().__init__(
            f"{destination} has no Python from 3.11 on.",
            reason="python_too_old",
            remedy="Install Python 3.11 or later on the host; python3.11 on its path is enough.",
        )


class GitMissing(HostUnusable):
    """The host has no git."""

    def __init__(self, destination: str) -> None:
        super().__init__(
            f"{destination} has no git.",
            reason="git_missing",
            remedy="Install git 2.39 or later on the host.",
        )


class ConnectionLost(Unavailable):
    """The connection broke; the same request with the same idempotency key does nothing twice."""

    def __init__(self, destination: str, cause: str = "") -> None:
        super().__init__(
            f"The connection to {destination} broke{f': {cause}' if cause else ''}.",
            reason="connection_lost",
            remedy="Try again.",
        )


_KINDS: Mapping[str, type[FairleadError]] = {
    "invalid_argument": InvalidArgument,
    "not_found": NotFound,
    "already_exists": AlreadyExists,
    "failed_precondition": FailedPrecondition,
    "permission_denied": PermissionDenied,
    "unauthenticated": Unauthenticated,
    "resource_exhausted": ResourceExhausted,
    "unavailable": Unavailable,
    "deadline_exceeded": DeadlineExceeded,
    "out_of_range": OutOfRange,
    "internal": Internal,
}


def error_fields(error: FairleadError) -> dict[str, object]:
    """Give an error as a host would tell it; see `error_from_host`."""
    kinds = (kind for kind, class_ in _KINDS.items() if isinstance(error, class_))
    return {
        "kind": next(kinds, "internal"),
        "reason": error.reason,
        "message": error.message,
        "remedy": error.remedy,
        "fields": error.fields,
    }


def error_from_host(destination: str, document: Mapping[str, object]) -> FairleadError:
    """Return the error that a host told."""

    def text(name: str) -> str:
        found = document.get(name)
        return found if isinstance(found, str) else ""

    reason = text("reason")
    if reason == "git_not_found":
        return GitMissing(destination)
    kind = class_of_reason(reason) or _KINDS.get(text("kind"), Internal)
    kind = HostUnusable if reason == "git_too_old" else kind
    fields = document.get("fields")
    pairs = fields.items() if isinstance(fields, Mapping) else ()
    return kind(
        text("message") or f"{destination} told of an error without a sentence.",
        reason=reason or "internal",
        remedy=text("remedy"),
        fields={str(name): str(value) for name, value in pairs},
    )


# What OpenSSH's client itself writes, each at the beginning of a line. It is only looked at when
# ssh ended with its own status before the host's program spoke; LogLevel=ERROR keeps the host's
# banner away, so that nothing here is the host's to write.
_COMPLAINTS: tuple[
    tuple[re.Pattern[str], type[HostKeyUnknown | HostKeyChanged | SshUnauthorized]], ...
]
_COMPLAINTS = (
    (re.compile(r"^@ +WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED", re.M), HostKeyChanged),
    (
        re.compile(r"^(No \S+ host key is known for|Host key verification failed)", re.M),
        HostKeyUnknown,
    ),
    (
        re.compile(r"^(\S+: Permission denied \(|Received disconnect .*[Tt]oo many auth)", re.M),
        SshUnauthorized,
    ),
)


def error_from_ssh(
    destination: str, status: int | None, complaint: str, *, port: int = 0
) -> FairleadError:
    """Return why no program answered, from how ssh ended and what it complained of; `port` is 0
    where ssh chose it.
    """
    if status == NO_PYTHON_STATUS:
        return PythonMissing(destination)
    if status == OLD_PYTHON_STATUS:
        return PythonTooOld(destination)
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    last = lines[-1].rstrip(".") if lines else "ssh gave no reason"
    if status == _SSH_FAILED_STATUS:
        for pattern, error in _COMPLAINTS:
            if pattern.search(complaint):
                return error(destination, port)
        return SshUnreachable(destination, last, port)
    if status is None:
        return SshUnreachable(destination, "it did not answer in time", port)
    return HostUnusable(
        f"{destination} did not start the program that was sent to it: {last}.",
        reason="resident_failed",
        remedy=f"Look at what `ssh {_words(destination, port)} python3 -V` says.",
    )
