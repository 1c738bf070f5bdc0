"""The rules for what a caller asks of sandboxes, as far as the text tells. Pure.

What a profile allows, and what a host can give, are for the host to judge.
"""

from __future__ import annotations

import math
import re
from dataclasses import fields

from signalling.sandbox import Limits, NetworkMode, NetworkPolicy
from signalling.source_rules import InvalidRequest, check_text

MAXIMUM_ALLOWED = 256
MAXIMUM_WALL_TIME = 365 * 24 * 3600.0
_MOST = 2**62
_MOST_SMALL = 2**31 - 1
_SMALL = ("processes", "open_files", "cpu_milli")
_ISOLATION = re.compile(r"[a-z][a-z0-9-]{0,31}")
_PROFILE = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def check_wish(isolation: str, profile: str, limits: Limits, network: NetworkPolicy | None) -> None:
    """Raise InvalidRequest unless a host can be asked for such a sandbox."""
    if isolation and not _ISOLATION.fullmatch(isolation):
        raise InvalidRequest(
            "isolation",
            "The isolation is not a name of lower-case letters, digits and hyphens.",
            reason="isolation_invalid",
            remedy="Leave it out for the host's best, or name one that `GET /v1/hosts` lists.",
        )
    if profile and not _PROFILE.fullmatch(profile):
        raise InvalidRequest(
            "profile",
            "The profile is not a name of lower-case letters, digits, `-` and `_`.",
            reason="profile_invalid",
            remedy="Leave it out for `default`, or name one that `GET /v1/hosts` lists.",
        )
    _check_limits(limits)
    if network is not None:
        check_network(network)


def _check_limits(limits: Limits) -> None:
    for each in fields(Limits):
        value = getattr(limits, each.name)
        most: float = _MOST_SMALL if each.name in _SMALL else _MOST
        if each.name == "wall_time":
            most = MAXIMUM_WALL_TIME
        if not (math.isfinite(value) and 0 <= value <= most):
            raise InvalidRequest(
                f"limits.{each.name}",
                f"The limit must be from 0 to {most:.0f}.",
                reason="limit_invalid",
                remedy="Leave it out for the profile's.",
            )


def check_network(network: NetworkPolicy) -> None:
    """Raise InvalidRequest unless a host can be asked for the network."""
    if network.allow and network.mode is not NetworkMode.EGRESS:
        raise InvalidRequest(
            "network.allow",
            "An allow list goes with the network `egress` only.",
            reason="network_invalid",
        )
    if len(network.allow) > MAXIMUM_ALLOWED:
        raise InvalidRequest(
            "network.allow",
            f"An allow list has at most {MAXIMUM_ALLOWED} entries.",
            reason="network_invalid",
        )
    for entry in network.allow:
        check_text("network.allow", entry, "network_invalid")
        if not 0 < len(entry) <= 300:
            raise InvalidRequest(
                "network.allow",
                "An entry of the allow list is a name, with a port or without.",
                reason="network_invalid",
            )
