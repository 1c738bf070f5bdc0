"""The worker's side of one zygote and of the inits that it forked: a generation, which is never
shared by tenants.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from chassis.clock import Clock
from chassis.packet_link import close_all
from chassis.packets import number
from sandbox_worker.errors import IsolationFailed
from sandbox_worker.isolation.cgroups import Cgroups
from sandbox_worker.isolation.forker_process import ForkerProcess
from sandbox_worker.isolation.host_users import HostUser, HostUsers
from sandbox_worker.isolation.walled_init import WalledInit
from sandbox_worker.owned_tasks import OwnedTasks

MOST_FORKS = 1000
MOST_SECONDS = 3600.0
"""After so many forks, or so long, a zygote forks no more: what its children share grows stale."""


class Generation:
    """A zygote and its inits; `tenant` is whose they are, empty until one of them is taken, and
    `is_over` says that the zygote is gone.

    `users` is None where sandboxes share the worker's uid; `changed` is told when an init or the
    zygote is gone.
    """

    def __init__(
        self,
        *,
        terms: Sequence[bytes],
        users: HostUsers | None,
        cgroups: Cgroups,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """Start it; raises OSError."""
        self.tenant = ""
        self.used_at = clock.monotonic()
        self._made_at = self.used_at
        self._users = users
        self._cgroups = cgroups
        self._clock = clock
        self._changed = changed
        self._inits: dict[bytes, WalledInit] = {}
        self._pool: deque[WalledInit] = deque()
        self._numbers = itertools.count(1)
        self._forks = 0
        self._answered = asyncio.Event()
        self._fault = ""
        self._is_lost = False
        self.is_over = False
        self._tasks = OwnedTasks()
        self._process = ForkerProcess(
            module="zygote", words=terms, arrived=self._on_packet, ended=self._on_lost
        )

    @property
    def pid(self) -> int:
        """The process id of the zygote."""
        return self._process.pid

    @property
    def can_fork(self) -> bool:
        """Whether it may have more inits."""
        age = self._clock.monotonic() - self._made_at
        return (
            not self._is_lost
            and not self._fault
            and self._forks < MOST_FORKS
            and age < MOST_SECONDS
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing of its inits is left."""
        return not self._inits

    @property
    def depth(self) -> int:
        """How many inits wait in the pool."""
        while self._pool and not self._pool[0].is_ready:
            self._pool.popleft()
        return sum(init.is_ready for init in self._pool)

    async def started(self) -> None:
        """Wait until the zygote can fork; raises IsolationFailed."""
        await self._answered.wait()
        if self._is_lost or self._fault:
            raise IsolationFailed(self._fault or "its zygote ended")

    def take_ready(self) -> WalledInit | None:
        """Take an init from the pool; None when there is none."""
        while self._pool:
            init = self._pool.popleft()
            if init.is_ready:
                return init
        return None

    async def fork(self, *, own_network: bool = True, for_pool: bool = False) -> WalledInit:
        """Let the zygote fork an init, which may not be open yet; without a network of its own it
        is on the host's. One for the pool gets ready for what comes then, which takes longer.
        Raises IsolationFailed.
        """
        self._forks += 1
        user = self._users.take() if self._users is not None else None
        try:
            group = await self._cgroups.take()
        except BaseException:
            self._give_back(user)
            raise
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        name = number(next(self._numbers))
        init = WalledInit(name=name, near=near, user=user, group=group, on_gone=self._on_init_gone)
        self._inits[name] = init
        sent = False
        try:
            uid = number(user.uid if user is not None else -1)
            with far, group.doors() as doors:
                network = b"own" if own_network else b"host"
                when = b"later" if for_pool else b"now"
                await self._process.send(
                    b"create", name, uid, network, when, descriptors=(far.fileno(), *doors)
                )
            sent = True
            if user is not None and user.namespace < 0:
                await self._process.send(b"map", name, number(os.geteuid()), uid)
        except BaseException as error:
            if not sent:
                init.on_gone()
            init.end()
            if isinstance(error, OSError):
                raise IsolationFailed(error.strerror or "its cgroup cannot be joined") from error
            raise
        return init

    async def add_ready(self) -> None:
        """Put another init into the pool, once it is open; raises IsolationFailed."""
        init = await self.fork(for_pool=True)
        await init.opened.wait()
        if not init.is_ready:
            raise IsolationFailed(init.fault or "its first process ended")
        self._pool.append(init)

    def drop_pool(self) -> None:
        """End the inits that wait."""
        while self._pool:
            self._pool.popleft().end()

    def close(self) -> None:
        """End the zygote and all that is below it."""
        self._process.close()

    async def wait(self) -> None:
        """Wait until the zygote and its inits are gone and their cgroups are given back."""
        for init in list(self._inits.values()):
            await init.gone.wait()
        await self._tasks.settle()

    def _on_packet(self, fields: list[bytes], descriptors: list[int]) -> None:
        init = self._inits.get(fields[1])
        match fields[0]:
            case b"born" if init is not None:
                init.on_born(descriptors)
                return
            case b"uncreated" if init is not None:
                init.fault = os.strerror(int(fields[2]))
                init.on_gone()
            case b"mapped" | b"unmapped" if init is not None:
                init.on_mapped(descriptors)
                return
            case b"unready":
                self._fault = os.strerror(int(fields[1]))
                self._answered.set()
            case b"ready":
                self._answered.set()
        close_all(descriptors)

    def _on_lost(self) -> None:
        self._is_lost = True
        self._answered.set()
        for init in list(self._inits.values()):
            init.end()
            init.on_forker_lost()
        self._tasks.start(self._bury(), name="end of a zygote")

    async def _bury(self) -> None:
        await self._process.wait()
        self.is_over = True
        self._changed()

    def _on_init_gone(self, init: WalledInit) -> None:
        self._inits.pop(init.name, None)
        if not init.is_sandbox:
            self._tasks.start(init.group.release(), name="release of a cgroup")
        self._give_back(init.user)
        self._changed()

    def _give_back(self, user: HostUser | None) -> None:
        if user is not None and self._users is not None:
            self._users.give_back(user)
