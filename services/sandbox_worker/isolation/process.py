"""Isolation tier 0, `process`: own session, resource limits, scrubbed environment, private
directories.

It is no boundary against hostile code: programs run as the worker's user, and see its files and its
network. A worker that is root runs them as another user where the kernel can map that one's files
(`unprivileged`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import shutil
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Self

from chassis.packets import number
from sandbox_worker.errors import IsolationFailed
from sandbox_worker.isolation.cgroups import Cgroup, Cgroups
from sandbox_worker.isolation.held_limits import hold_limits
from sandbox_worker.isolation.init_link import InitEnclosure, InitEnded, announce
from sandbox_worker.isolation.lending import lend_nothing
from sandbox_worker.isolation.spawner_process import SpawnerProcess
from sandbox_worker.isolation.strays import kill_strays
from sandbox_worker.isolation.unprivileged import cover_of
from sandbox_worker.ports import TenantClaim, Tree
from sandbox_worker.sandbox import Hold, Limits, NetworkMode, NetworkPolicy, Wall

log = logging.getLogger(__name__)

_CREATE_SECONDS = 10.0


class ProcessIsolation:
    """Makes enclosures of plain processes; an async context manager that owns the spawner.

    `user` is the uid as which a worker that is root has its programs run; None for its own user.
    Where that is root, `why_root` says why.
    """

    name = "process"

    def __init__(
        self,
        *,
        private_root: Path,
        path: str,
        cgroups: Cgroups,
        executor: Executor,
        sole_tenant: TenantClaim,
        user: int | None = None,
        why_root: str = "",
    ) -> None:
        self._private_root = private_root
        self._sole_tenant = sole_tenant
        self._user = user
        self._why_root = why_root
        self._cover = b"" if user is None else cover_of(bytes(private_root.parents[1]))
        self._path = path
        self._cgroups = cgroups
        self._executor = executor
        self._enclosures: dict[str, InitEnclosure] = {}
        self._left: set[Path] = set()
        self._spawner = SpawnerProcess(gone=self._on_gone, lost=self._on_lost)

    @property
    def spawner_pid(self) -> int:
        """The process id of the spawner."""
        return self._spawner.pid

    async def __aenter__(self) -> Self:
        await self._spawner.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._spawner.__aexit__(*exception)
        self._on_lost()

    @property
    def walls(self) -> Sequence[Wall]:
        """Whether programs run without the rights of root; else none stands."""
        return (Wall("unprivileged", stands=not self._why_root, reason=self._why_root),)

    @property
    def networks(self) -> Sequence[NetworkMode]:
        """The host's, which it shares."""
        return (NetworkMode.HOST,)

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
        """Fork an init; raises HostReserved, StorageUnavailable and IsolationFailed."""
        await self._sole_tenant.claim(tenant)
        private = self._private_root / sandbox_id
        if private in self._left:
            # What removes them may be at it right now, and would take the fresh ones as well.
            raise IsolationFailed("its earlier directories are not removed yet")
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, _make_private, private, self._user)
        except OSError as error:
            await self._clear(private)
            raise IsolationFailed(error.strerror or "its directories cannot be made") from error
        try:
            group = await self._cgroups.take()
        except BaseException:
            await self._clear(private)
            raise
        # The kernel counts a user's processes, not a sandbox's, and not at all for root.
        is_root = self._user is None and os.geteuid() == 0
        held = hold_limits(limits, group, counts_processes=not is_root)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        announce(near, held, workspace, hold)
        enclosure = InitEnclosure(
            sandbox_id=sandbox_id,
            link=near,
            walls=self.walls,
            environment=self._environment(sandbox_id, private),
            home=private / "home",
            group=group,
            lend=lend_nothing,
            kill=lambda: self._spawner.kill(sandbox_id),
            clear=lambda: self._clear(private),
        )
        self._enclosures[sandbox_id] = enclosure
        try:
            async with asyncio.timeout(_CREATE_SECONDS):
                with far:
                    await self._create(sandbox_id, far, group, private)
                await enclosure.take(held, workspace)
        except (TimeoutError, InitEnded, OSError) as error:
            await enclosure.destroy()
            raise IsolationFailed(_why(error)) from None
        except BaseException:
            await enclosure.destroy()
            raise
        return enclosure

    async def _create(
        self, sandbox_id: str, far: socket.socket, group: Cgroup, private: Path
    ) -> None:
        unprivileged: tuple[bytes, ...] = ()
        if self._user is not None:
            unprivileged = (number(self._user), self._cover, bytes(private))
        try:
            with group.doors() as doors:
                await self._spawner.create(sandbox_id, (far.fileno(), *doors), *unprivileged)
        except BaseException:
            # It was not sent, so that nobody will report the end of this init.
            self._on_gone(sandbox_id)
            raise

    async def tidy(self) -> None:
        """Remove what a disk in trouble kept when its sandbox ended, and cgroups that stayed."""
        await self._cgroups.tidy()
        for private in list(self._left):
            await self._clear(private)

    async def clean(self) -> None:
        """Kill and remove what earlier lives left; only before the first enclosure."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._clean)

    def _clean(self) -> None:
        if self._private_root.exists():
            kill_strays({path.name for path in self._private_root.iterdir()})
            remove_tree(self._private_root)

    async def _clear(self, private: Path) -> None:
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(self._executor, remove_tree, private):
            self._left.discard(private)
        elif private not in self._left:
            self._left.add(private)
            log.warning("files of a sandbox are left", extra={"sandbox_id": private.name})

    def _environment(self, sandbox_id: str, private: Path) -> Mapping[str, str]:
        return {
            "PATH": self._path,
            "HOME": str(private / "home"),
            "TMPDIR": str(private / "tmp"),
            "LANG": "C.UTF-8",
            "USER": _user() if self._user is None else "sandbox",
            "FAIRLEAD_SANDBOX_ID": sandbox_id,
        }

    def _on_gone(self, sandbox_id: str) -> None:
        enclosure = self._enclosures.pop(sandbox_id, None)
        if enclosure is not None:
            enclosure.on_gone()

    def _on_lost(self) -> None:
        """Let go of all inits: with their spawner dead they kill what is below them and end."""
        for enclosure in list(self._enclosures.values()):
            enclosure.on_spawner_lost()
        self._enclosures.clear()


def remove_tree(root: Path) -> bool:
    """Delete a directory, also where a program took away its own permissions; says whether it is
    certain that nothing is left. Blocking.
    """
    shutil.rmtree(root, ignore_errors=True)
    if _is_gone(root):
        return True
    for folder, _, _ in os.walk(root):
        with suppress(OSError):
            os.chmod(folder, 0o700)
    shutil.rmtree(root, ignore_errors=True)
    return _is_gone(root)


def _is_gone(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def _make_private(private: Path, user: int | None) -> None:
    for name in ("home", "tmp"):
        (private / name).mkdir(mode=0o700, parents=True)
        if user is not None:
            os.chown(private / name, user, user)


def _why(error: Exception) -> str:
    if isinstance(error, InitEnded):
        return "its first process ended"
    if isinstance(error, TimeoutError):
        return "its first process does not answer"
    return str(error)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "fairlead"
