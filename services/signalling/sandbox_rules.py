"""The rules for what a caller asks of sandboxes, as far as the text tells. Pure.

What a profile allows, and what a host can give, are for the host to judge.
"""

from __future__ import annotations

from chassis.allow_list import parse_allow_list
from chassis.limits import check_name, check_size
from fairlead_limits import table
from signalling.sandbox import Limits, NetworkMode, NetworkPolicy
from signalling.source_rules import InvalidRequest


def check_wish(isolation: str, profile: str, limits: Limits, network: NetworkPolicy | None) -> None:
    """Raise InvalidArgument unless a host can be asked for such a sandbox."""
    if isolation:
        check_name(table.ISOLATION, isolation)
    if profile:
        check_name(table.PROFILE, profile)
    for name, limit in table.SANDBOX_LIMITS.items():
        check_size(limit, getattr(limits, name))
    if network is not None:
        check_network(network)


def check_network(network: NetworkPolicy) -> None:
    """Raise InvalidArgument unless a host can be asked for the network."""
    if network.allow and network.mode is not NetworkMode.EGRESS:
        raise InvalidRequest(
            "network.allow",
            "An allow list goes with the network `egress` only.",
            reason="network_invalid",
        )
    parse_allow_list(network.allow)
