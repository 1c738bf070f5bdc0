"""Puts together what serves the networks of sandboxes."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

from chassis.clock import Clock
from chassis.own_addresses import is_own
from chassis.public_addresses import Network
from chassis.resolver import SystemResolver
from sandbox_worker.network.address_rules import AddressRules
from sandbox_worker.network.egress_ports import Count
from sandbox_worker.network.egress_proxy import EgressProxy
from sandbox_worker.network.networks import Networks

_RESOLVER_THREADS = 32
# Each connection has two descriptors; half of what this process may have is left for the rest.
_SHARE = 4
_MANY_FILES = 65_536


@contextmanager
def opened_networks(
    *,
    opened: Iterable[Network],
    mesh_ports: Iterable[int],
    most_each: int,
    clock: Clock,
    count: Count,
) -> Iterator[Networks]:
    """Open the networks of sandboxes, and stop resolving names at the end."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = soft if soft != resource.RLIM_INFINITY else _MANY_FILES
    with closing(SystemResolver(threads=_RESOLVER_THREADS)) as resolve:
        proxy = EgressProxy(
            rules=AddressRules(opened=opened, mesh_ports=mesh_ports, is_own=is_own),
            resolve=resolve,
            clock=clock,
            count=count,
            most_each=most_each,
            most_in_all=files // _SHARE,
        )
        yield Networks(doors=proxy)
