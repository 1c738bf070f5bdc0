"""Isolation tier 1, `walled`: each sandbox behind namespaces of its own, in a root that holds the
system's programs, its workspace and private directories, and nothing else of the host.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from chassis.clock import Clock
from fairlead_walls.survey import Survey
from sandbox_worker.errors import IsolationFailed, NetworkUnavailable
from sandbox_worker.isolation.cgroups import Cgroups
from sandbox_worker.isolation.generation import Generation
from sandbox_worker.isolation.held_limits import HeldLimits, hold_limits
from sandbox_worker.isolation.host_users import HostUsers
from sandbox_worker.isolation.init_link import InitEnclosure, InitEnded, announce
from sandbox_worker.isolation.wall_survey import walls_of
from sandbox_worker.isolation.walled_init import WalledInit
from sandbox_worker.isolation.zygotes import Zygotes
from sandbox_worker.ports import Tree
from sandbox_worker.sandbox import Hold, Limits, NetworkMode, NetworkPolicy, Wall

_CREATE_SECONDS = 10.0
_ATTEMPTS = 4
"""Inits that are tried for one sandbox: those of a zygote that has just died fail."""

_NETWORK_WALL = "network"
_HOME = Path("/home/sandbox")
_WORKSPACE = Path("/workspace")


class WalledIsolation:
    """Makes walled enclosures; an async context manager that owns the zygotes."""

    name = "walled"

    def __init__(
        self,
        *,
        survey: Survey,
        path: str,
        cgroups: Cgroups,
        pool_size: int,
        clock: Clock,
        host_id: str,
        host_network: bool = False,
    ) -> None:
        self._survey = survey
        self._walls = walls_of(survey)
        self._host_network = host_network
        self._path = path
        self._cgroups = cgroups
        self._clock = clock
        self._users = (
            HostUsers(first=survey.first_uid, count=survey.uids, seed=host_id)
            if survey.own_uid
            else None
        )
        self.zygotes = Zygotes(start=self._start, pool_size=pool_size, clock=clock)

    async def __aenter__(self) -> Self:
        await self.zygotes.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.zygotes.__aexit__(*exception)
        if self._users is not None:
            self._users.close()

    @property
    def walls(self) -> Sequence[Wall]:
        """What the survey found, and the limits of cgroups."""
        return (*self._walls, *self._cgroups.walls)

    @property
    def networks(self) -> Sequence[NetworkMode]:
        """Its own loopback, alone or with a proxy; the host's network where that is configured."""
        host = (NetworkMode.HOST,) if self._host_network else ()
        return (NetworkMode.NONE, NetworkMode.EGRESS, *host)

    async def enclose(
        self,
        sandbox_id: str,
        limits: Limits,
        network: NetworkPolicy,
        *,
        tenant: str,
        workspace: Tree | None = None,
        hold: Hold | None = None,
    ) -> InitEnclosure:
        """Take an init and make it a sandbox, held from then on; raises IsolationFailed,
        NetworkUnavailable and WorkspaceNotMounted.
        """
        if network.mode not in self.networks:
            raise NetworkUnavailable(network.mode, self.name, self.networks)
        try:
            async with asyncio.timeout(_CREATE_SECONDS):
                for _ in range(_ATTEMPTS):
                    own = network.mode is not NetworkMode.HOST
                    init = await self.zygotes.take(tenant, own_network=own)
                    if init.has_ended:
                        if init.fault:
                            raise IsolationFailed(init.fault)
                        continue
                    held = self._divided(init, limits)
                    link = init.give()
                    announce(link, held, workspace, hold)
                    enclosure = self._enclosure(sandbox_id, init, link, own_network=own)
                    try:
                        await enclosure.take(held, workspace)
                    except InitEnded:
                        await enclosure.destroy()
                        if init.fault:
                            raise IsolationFailed(init.fault) from None
                    except BaseException:
                        await enclosure.destroy()
                        raise
                    else:
                        return enclosure
        except TimeoutError:
            raise IsolationFailed("its first process does not answer") from None
        raise IsolationFailed("its first process ended")

    async def tidy(self) -> None:
        """Nothing of it is on disk."""

    async def clean(self) -> None:
        """The kernel has ended all that an earlier life had."""

    def _start(self, changed: Callable[[], None]) -> Generation:
        return Generation(
            terms=self._survey.terms,
            users=self._users,
            cgroups=self._cgroups,
            clock=self._clock,
            changed=changed,
        )

    def _enclosure(
        self, sandbox_id: str, init: WalledInit, link: socket.socket, *, own_network: bool
    ) -> InitEnclosure:
        enclosure = InitEnclosure(
            sandbox_id=sandbox_id,
            link=link,
            walls=self.walls if own_network else [_on_host(wall) for wall in self.walls],
            environment=self._environment(sandbox_id),
            home=_HOME,
            view=_WORKSPACE,
            group=init.group,
            lend=init.lend,
            kill=init.kill,
            clear=_nothing_left,
            find_first=init.pid,
        )
        init.become(enclosure)
        return enclosure

    def _divided(self, init: WalledInit, limits: Limits) -> HeldLimits:
        # The kernel counts the processes of each uid, and not at all for root.
        counts = init.user is not None or os.geteuid() != 0
        return hold_limits(limits, init.group, counts_processes=counts)

    def _environment(self, sandbox_id: str) -> Mapping[str, str]:
        return {
            "PATH": self._path,
            "HOME": str(_HOME),
            "TMPDIR": "/tmp",  # noqa: S108 - the sandbox's own
            "LANG": "C.UTF-8",
            "USER": "sandbox",
            "FAIRLEAD_SANDBOX_ID": sandbox_id,
        }


def _on_host(wall: Wall) -> Wall:
    if wall.name != _NETWORK_WALL:
        return wall
    return Wall(wall.name, stands=False, reason="it was asked for on the host's network")


async def _nothing_left() -> None:
    """The kernel takes everything away with the last process."""
