"""Puts together what fetches from origins: upstreams' tips and submodules."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from chassis.clock import Clock
from chassis.own_addresses import is_own
from chassis.resolver import SystemResolver
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.egress import EgressRules
from workspace_provisioner.git.ancestry import GitAncestry
from workspace_provisioner.git.command import Git
from workspace_provisioner.origin_ports import Intake, Known
from workspace_provisioner.submodules import SubmoduleLimits, Submodules
from workspace_provisioner.transport.address import OriginAddresses, Resolve
from workspace_provisioner.transport.credentials import Credentials
from workspace_provisioner.transport.records import SightingFiles
from workspace_provisioner.transport.upstreams import GitOrigins
from workspace_provisioner.trees.submodules import GitSubmodules
from workspace_provisioner.upstreams import OriginFetch, Upstreams

FETCH_SECONDS = 120.0
"""How long a fetch may go on after the launches that waited for it have gone on without."""

# Those of many tenants whose name servers are silent: each may have 8 fetches, and 8 builds.
_RESOLVER_THREADS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginAccess:
    """How origins are reached; see the settings of these names. Without `trust` the system's
    certificate authorities are trusted, without `resolve` its resolver is asked.
    """

    wait_seconds: float = 5.0
    allowed: tuple[str, ...] = ()
    credentials: Path | None = None
    resolve: Resolve | None = None
    trust: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class OriginParts:
    """The use cases that fetch."""

    upstreams: Upstreams
    submodules: Submodules


@asynccontextmanager
async def opened_origins(
    access: OriginAccess,
    *,
    layout: Layout,
    git: Git,
    files: FileWork,
    stores: Known,
    intake: Intake,
    clock: Clock,
    pack_bytes: int,
    slots: asyncio.Semaphore,
) -> AsyncIterator[OriginParts]:
    """Open the parts, and stop the fetches that still run at the end. Raises ValueError for an
    `allowed` entry that is none.
    """
    resolver = SystemResolver(threads=_RESOLVER_THREADS)
    fetch = OriginFetch(
        origins=GitOrigins(
            addresses=OriginAddresses(
                rules=EgressRules(allowed=access.allowed, is_own=is_own),
                resolve=access.resolve or resolver,
            ),
            credentials=Credentials(directory=access.credentials),
            trust=access.trust,
        ),
        stores=stores,
        ancestry=GitAncestry(layout=layout, git=git),
        intake=intake,
    )
    upstreams = Upstreams(
        fetch=fetch,
        stores=stores,
        sightings=SightingFiles(layout=layout, files=files),
        clock=clock,
        wait_seconds=access.wait_seconds,
        fetch_seconds=FETCH_SECONDS,
    )
    submodules = Submodules(
        fetch=fetch,
        trees=GitSubmodules(layout=layout, git=git, files=files),
        limits=SubmoduleLimits(bytes=pack_bytes),
        slots=slots,
    )
    try:
        yield OriginParts(upstreams, submodules)
    finally:
        await upstreams.close()
        resolver.close()
