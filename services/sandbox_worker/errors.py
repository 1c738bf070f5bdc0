"""The errors of sandboxes and of the host; each is one sentence, one reason and a remedy."""

from __future__ import annotations

from collections.abc import Sequence

from chassis.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)


class ArgumentInvalid(InvalidArgument):
    """A field that the call needs is empty or out of its bounds."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(
            f"The field {field} {rule}.",
            reason="argument_invalid",
            remedy="Correct the field and call again.",
            fields={"field": field},
        )


class SandboxNotFound(NotFound):
    """No such sandbox is held here for this tenant."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(
            "There is no such sandbox on this host.",
            reason="sandbox_not_found",
            remedy="List the sandboxes; it may have been released or its lease may have ended.",
            fields={"sandbox_id": short(sandbox_id)},
        )


class SandboxReleased(FailedPrecondition):
    """The idempotency key belongs to a sandbox that was given back."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(
            "The sandbox was released.",
            reason="sandbox_released",
            remedy="Create another one with another idempotency key.",
            fields={"sandbox_id": sandbox_id},
        )


class SandboxBound(FailedPrecondition):
    """The sandbox has another workspace already."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(
            "The sandbox is bound to another workspace.",
            reason="sandbox_bound",
            remedy="Create another sandbox for the other workspace.",
            fields={"sandbox_id": sandbox_id},
        )


class SandboxSealed(FailedPrecondition):
    """The sandbox has run something without a workspace, and its walls are closed by now."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(
            "The sandbox takes no workspace any more.",
            reason="sandbox_sealed",
            remedy="Create another one, and bind its workspace before anything is started in it.",
            fields={"sandbox_id": sandbox_id},
        )


class SandboxLost(Unavailable):
    """The sandbox's processes were killed from outside."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(
            "The sandbox was lost.",
            reason="sandbox_lost",
            remedy="Create another one.",
            fields={"sandbox_id": sandbox_id},
        )


class FenceStale(FailedPrecondition):
    """The sandbox has heard of a later holder of its lease than this call's."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(
            "The sandbox's lease has a later holder.",
            reason="fence_stale",
            remedy="Get the sandbox again; somebody else has renewed it since.",
            fields={"sandbox_id": sandbox_id},
        )


class KeyTaken(AlreadyExists):
    """The idempotency key belongs to a sandbox that was asked for differently."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(
            "The idempotency key was used for another sandbox.",
            reason="idempotency_conflict",
            remedy="Use another key, or ask for the same as before.",
            fields={"sandbox_id": sandbox_id},
        )


class ProfileUnknown(InvalidArgument):
    """The host has no profile of this name."""

    def __init__(self, profile: str, known: Sequence[str]) -> None:
        super().__init__(
            f"There is no profile {short(profile)!r}.",
            reason="profile_unknown",
            remedy=f"Ask for one of {', '.join(known)}, or for none to get `default`.",
            fields={"profile": short(profile), "available": ",".join(known)},
        )


class LimitExceeded(InvalidArgument):
    """More is asked for than the profile allows."""

    def __init__(self, limit: str, profile: str, most: float) -> None:
        super().__init__(
            f"The profile {profile} allows {limit} of {most:.15g} at most.",
            reason="limit_exceeded",
            remedy="Ask for less, or for a profile that allows more.",
            fields={"limit": limit, "profile": profile, "most": f"{most:.15g}"},
        )


class NetworkInvalid(InvalidArgument):
    """A list goes with a network that has none."""

    def __init__(self) -> None:
        super().__init__(
            "An allow list goes with the network `egress` only.",
            reason="network_invalid",
            remedy="Leave the list out, or ask for `egress`.",
            fields={"field": "network.allow"},
        )


class IsolationTooWeak(PermissionDenied):
    """A weaker isolation is asked for than the profile's."""

    def __init__(self, isolation: str, profile: str, least: str) -> None:
        super().__init__(
            f"The profile {profile} allows no isolation weaker than {least}.",
            reason="isolation_too_weak",
            remedy=f"Ask for {least} or a stronger one, or for none to get the profile's.",
            fields={"isolation": isolation, "profile": profile, "least": least},
        )


class NetworkExceeded(PermissionDenied):
    """More of the network is asked for than the profile allows."""

    def __init__(self, mode: str, profile: str, most: str) -> None:
        super().__init__(
            f"The profile {profile} allows the network {most} at most, not {mode}.",
            reason="network_exceeded",
            remedy=f"Ask for {most} or less; the operator may raise network_most of the profile.",
            fields={"network": mode, "profile": profile, "most": most},
        )


class HostReserved(PermissionDenied):
    """The host runs programs without walls, and does that for one tenant only: another one."""

    def __init__(self) -> None:
        super().__init__(
            "Without walls this host runs the programs of one tenant only, and that is another"
            " one.",
            reason="host_reserved",
            remedy="Ask for the isolation walled, or for another host; where this one cannot raise"
            " walls, `fairlead doctor` says why.",
            fields={"isolation": "process"},
        )


class NetworkUnavailable(FailedPrecondition):
    """The isolation cannot give the network."""

    def __init__(self, mode: str, isolation: str, available: Sequence[str]) -> None:
        super().__init__(
            f"A sandbox of isolation {isolation} cannot have the network {mode} on this host.",
            reason="network_unavailable",
            remedy=f"Ask for {' or '.join(available)}, or for another isolation.",
            fields={"network": mode, "isolation": isolation, "available": ",".join(available)},
        )


class ProfilesInvalid(FailedPrecondition):
    """The file of profiles cannot be used."""

    def __init__(self, path: str, cause: str) -> None:
        super().__init__(
            f"The profiles in {path} cannot be used: {cause}.",
            reason="profiles_invalid",
            remedy="Correct the file, or unset FAIRLEAD_SANDBOX_PROFILES.",
        )


class WorkspaceNotFound(NotFound):
    """No such workspace is on this host."""

    def __init__(self, workspace_id: str) -> None:
        super().__init__(
            "There is no such workspace on this host.",
            reason="workspace_not_found",
            remedy="Materialize it on the host that holds the sandbox.",
            fields={"workspace_id": short(workspace_id)},
        )


class WorkspaceNotMounted(FailedPrecondition):
    """The layers of a workspace cannot be mounted in the sandbox."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The workspace cannot be mounted in the sandbox: {cause}.",
            reason="workspace_not_mounted",
            remedy="Materialize it without an overlay, or let the worker mount (see its README).",
        )


class IsolationUnknown(InvalidArgument):
    """No isolation has this name."""

    def __init__(self, isolation: str, known: Sequence[str]) -> None:
        super().__init__(
            f"There is no isolation {short(isolation)!r}.",
            reason="isolation_unknown",
            remedy=f"Ask for one of {', '.join(known)}, or for none to get the host's best.",
            fields={"isolation": short(isolation)},
        )


class IsolationUnavailable(FailedPrecondition):
    """This host does not offer the isolation."""

    def __init__(self, isolation: str, available: Sequence[str]) -> None:
        super().__init__(
            f"This host does not offer the isolation {isolation}; it offers "
            f"{', '.join(available)}.",
            reason="isolation_unavailable",
            remedy="Ask for one that it offers, or add a host that offers this one.",
            fields={"isolation": isolation, "available": ",".join(available)},
        )


class IsolationFailed(Unavailable):
    """The host could not make a sandbox just now."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The host could not make the sandbox: {cause}.",
            reason="isolation_failed",
            remedy="Try again; if it stays so, look at the host's memory and process limits.",
        )


class HostFull(ResourceExhausted):
    """The host holds as many sandboxes as it may."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"The host holds {most} sandboxes, which is its limit.",
            reason="host_full",
            remedy="Release some, try another host, or raise FAIRLEAD_SANDBOX_MOST_SANDBOXES.",
            fields={"limit": str(most)},
        )


class WorkerDraining(Unavailable):
    """The worker is about to stop and takes nothing more."""

    def __init__(self) -> None:
        super().__init__(
            "The worker is stopping.",
            reason="worker_draining",
            remedy="Try again in a few seconds, or on another host.",
        )


class PortRefused(FailedPrecondition):
    """Nothing listens on a port inside a sandbox."""

    def __init__(self, sandbox_id: str, port: int) -> None:
        super().__init__(
            f"Nothing listens on port {port} inside the sandbox.",
            reason="port_refused",
            remedy="Start the server in the sandbox, on its loopback address.",
            fields={"sandbox_id": sandbox_id, "port": str(port)},
        )


class GatewayUnreachable(Unavailable):
    """The gateway that wants a connection does not answer where it says that it listens."""

    def __init__(self) -> None:
        super().__init__(
            "The host of the sandbox cannot reach the gateway.",
            reason="gateway_unreachable",
            remedy="Try again in some seconds; if it stays so, look whether the address that the"
            " gateway advertises can be dialled from the host.",
        )


class ConnectionsExhausted(ResourceExhausted):
    """The host carries as many connections to ports as it takes."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"The host carries {most} connections to ports, which is its limit.",
            reason="connections_exhausted",
            remedy="Close connections.",
            fields={"limit": str(most)},
        )


class StorageUnavailable(Unavailable):
    """The host's disk does not take a record; `is_full` says whether that is why."""

    def __init__(self, *, is_full: bool = False) -> None:
        super().__init__(
            "The host's disk is full." if is_full else "The host's storage does not take a record.",
            reason="storage_unavailable",
            remedy="Free space on the host's volume, then try again.",
        )


class SecretRequired(FailedPrecondition):
    """The room would serve over TCP, and nothing protects it."""

    def __init__(self) -> None:
        super().__init__(
            "FAIRLEAD_SANDBOX_BIND is a TCP address, and there is no stack secret.",
            reason="secret_required",
            remedy="Set FAIRLEAD_SECRET_FILE, or serve on a unix socket.",
        )


class HostBusy(FailedPrecondition):
    """Another worker serves this host's root."""

    def __init__(self) -> None:
        super().__init__(
            "Another sandbox worker serves this host's root.",
            reason="host_busy",
            remedy="Stop the other one, or set another FAIRLEAD_HOST_ROOT.",
        )


def short(text: str) -> str:
    """Cut a caller's text for a message."""
    return text if len(text) <= 200 else text[:199] + "…"
