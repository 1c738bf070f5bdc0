"""What can go wrong with a sandbox here, as a caller sees it; what a host refuses keeps its own
reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from chassis.errors import FailedPrecondition, InvalidArgument, NotFound


class SandboxInUse(FailedPrecondition):
    """The sandbox belongs to a launch, whose lease and end are its own."""

    def __init__(self, sandbox_id: str, launch_id: str) -> None:
        super().__init__(
            "The sandbox belongs to a launch.",
            reason="sandbox_in_use",
            remedy=f"Renew or end the launch (`fairlead kill {launch_id}`).",
            fields={"sandbox_id": sandbox_id[:64], "launch_id": launch_id},
        )


class HostNotFound(NotFound):
    """No host of this id is registered."""

    def __init__(self, host_id: str) -> None:
        super().__init__(
            "There is no such host.",
            reason="host_not_found",
            remedy="Leave the host out, or name one that `GET /v1/hosts` lists.",
            fields={"host_id": host_id[:64]},
        )


class HostMismatch(FailedPrecondition):
    """The workspace is on another host than the one asked for."""

    def __init__(self, wanted: str, actual: str) -> None:
        super().__init__(
            "The workspace is on another host.",
            reason="host_mismatch",
            remedy="Leave the host out: a sandbox is made where its workspace is.",
            fields={"host_id": wanted[:64], "workspace_host_id": actual},
        )


class ProfileUnknown(InvalidArgument):
    """No host has a profile of this name."""

    def __init__(self, profile: str, offered: Sequence[str]) -> None:
        super().__init__(
            "No host has that profile.",
            reason="profile_unknown",
            remedy="Leave the profile out for `default`, or use one of: "
            + (", ".join(offered) or "(none)"),
            fields={"profile": profile[:64], "available": ",".join(offered)},
        )


class PortsByChannel(FailedPrecondition):
    """Clients do not have workers dial."""

    def __init__(self) -> None:
        super().__init__(
            "A port of a sandbox is reached through a session, not at its host.",
            reason="ports_by_channel",
            remedy="Open a session (`fairlead forward`), and a channel in it.",
        )
