"""What goes wrong between a client and a front door, whichever library carries it."""

from __future__ import annotations

from fairlead_sdk.errors import FairleadError, MeshUnavailable


def unreachable(url: str) -> MeshUnavailable:
    """Nobody answers there."""
    return MeshUnavailable(
        f"Nothing answers at {url}.",
        reason="mesh_unreachable",
        remedy="Start the stack with `fairlead up`, or point FAIRLEAD_URL at one.",
    )


def silent(url: str) -> MeshUnavailable:
    """It takes too long."""
    return MeshUnavailable(
        f"The front door at {url} does not answer in time.",
        reason="mesh_silent",
        remedy="`fairlead doctor` shows what is wrong.",
    )


def broken(url: str) -> MeshUnavailable:
    """The connection ended in the middle."""
    return MeshUnavailable(
        f"The connection to {url} broke.",
        reason="connection_lost",
        remedy="Try again; `fairlead doctor` shows what is wrong.",
    )


def is_no_websocket(error: FairleadError) -> bool:
    """Say whether the refusal of a WebSocket may be somebody's in between: no answer of the front
    door's own, or one to a request that was no `Upgrade` any more.
    """
    is_foreign = error.reason.startswith("http_") or error.reason == "route_not_found"
    return is_foreign or isinstance(error, MeshUnavailable)


def no_address(url: str) -> MeshUnavailable:
    """The URL is none."""
    return MeshUnavailable(
        f"{url} is not an address.",
        reason="url_invalid",
        remedy="Set FAIRLEAD_URL to something like http://127.0.0.1:7300.",
    )
