"""A cgroup per sandbox: what all of its processes hold and use together, and how they are killed.

Cgroups are made ahead, because a directory in each hierarchy waits for a lock of the whole kernel:
mostly for 0.1 ms in all.
Their tree carries the name of this host's state, so that what earlier lives left is known as ours.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Self

from sandbox_worker.brief_work import BriefWork
from sandbox_worker.errors import IsolationFailed
from sandbox_worker.execution import ExitReason, ProgramEnd
from sandbox_worker.isolation.cgroup_files import Counts, GroupTree
from sandbox_worker.isolation.cgroup_survey import Survey, survey
from sandbox_worker.sandbox import Limits, Wall

log = logging.getLogger(__name__)

_READY = 8
"""Cgroups that wait for a sandbox."""

_PATIENCE = 5.0
"""Seconds that killed processes get to be gone; the janitor asks again afterwards."""

_PAUSE = 0.001

_CALM_SECONDS = 0.02
"""Time for a sandbox that has just taken one to be made, before the next one is."""

_SHELL_SIGNAL = 128
"""What shells add to the number of the signal that ended their last command."""


class Cgroup:
    """The cgroup of one sandbox; without a tree it holds nothing and does nothing."""

    def __init__(self, *, name: str, tree: GroupTree | None, cgroups: Cgroups) -> None:
        self._name = name
        self._tree = tree
        self._cgroups = cgroups

    @contextmanager
    def doors(self) -> Iterator[Sequence[int]]:
        """Open the descriptors by which the sandbox's first process joins; they are closed at the
        end of the block. Raises OSError.
        """
        doors = self._tree.doors(self._name) if self._tree is not None else []
        try:
            yield doors
        finally:
            for door in doors:
                os.close(door)

    def limit(self, limits: Limits) -> None:
        """Write the limits; raises OSError."""
        if self._tree is not None:
            self._tree.limit(self._name, limits)

    @property
    def controllers(self) -> frozenset[str]:
        """Which of memory, pids and cpu it limits."""
        return self._tree.controllers if self._tree is not None else frozenset()

    def mark(self) -> Counts:
        """Return the counters, to be asked about later."""
        if self._tree is not None:
            with suppress(OSError, ValueError):
                return self._tree.counts(self._name)
        return Counts()

    def breach(self, mark: Counts, end: ProgramEnd) -> ExitReason | None:
        """Return the limit that ended a program which was started at `mark`.

        Only a program that failed met a limit: out of memory when it was killed (or its shell says
        so, by code 137; or its init is gone) after the kernel killed somebody in the sandbox for
        memory; too many processes when it failed after a fork was refused there; too large a file
        when SIGXFSZ ended it.
        """
        if end.signal == signal.SIGXFSZ:
            return ExitReason.LIMIT_DISK
        if end.code == 0:
            return None
        lost = end.code is None and end.signal is None
        killed = end.signal == signal.SIGKILL or end.code == _SHELL_SIGNAL + signal.SIGKILL
        now = self.mark()
        if (killed or lost) and now.memory_kills > mark.memory_kills:
            return ExitReason.OUT_OF_MEMORY
        if not lost and now.refused_forks > mark.refused_forks:
            return ExitReason.LIMIT_PIDS
        return None

    async def release(self) -> None:
        """Kill every process in it, wait until it is empty, remove it. Again is harmless."""
        if self._tree is not None:
            await self._cgroups.give_back(self._name)


class Cgroups:
    """Makes, keeps ready and removes cgroups; an async context manager."""

    def __init__(self, *, name: str, epoch: int, work: BriefWork) -> None:
        self._tree_name = name
        self._epoch = epoch
        self._work = work
        self._survey = Survey(None, ())
        self._ready: deque[str] = deque()
        self._refill: asyncio.Task[None] | None = None
        self._is_over = False
        self._left: set[str] = set()
        self._numbers = itertools.count(1)

    @property
    def walls(self) -> Sequence[Wall]:
        """Whether memory, pids and cpu are limited per sandbox, and why not."""
        return self._survey.walls

    @property
    def controllers(self) -> frozenset[str]:
        """Which of memory, pids and cpu are limited per sandbox."""
        return self._survey.tree.controllers if self._survey.tree is not None else frozenset()

    async def __aenter__(self) -> Self:
        self._survey = await self._work.run_apart(lambda: survey(name=self._tree_name))
        for wall in self._survey.walls:
            if not wall.stands:
                log.warning(
                    "a limit cannot be held", extra={"wall": wall.name, "cause": wall.reason}
                )
        if self._survey.tree is not None:
            self._left.update(self._survey.tree.names())
            await self.tidy()
            self._fill()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._is_over = True
        if self._refill is not None:
            await asyncio.wait([self._refill])
        if self._survey.tree is not None:
            self._left.update(self._survey.tree.names())
            await self.tidy()
            self._survey.tree.close()
        for lock in self._survey.locks:
            os.close(lock)

    async def take(self) -> Cgroup:
        """Return a cgroup of its own without limits; raises IsolationFailed."""
        tree = self._survey.tree
        if tree is None:
            return Cgroup(name="", tree=None, cgroups=self)
        if self._ready:
            name = self._ready.popleft()
        else:
            try:
                name = await self._work.run(lambda: self._make(tree))
            except OSError as error:
                raise IsolationFailed(error.strerror or "its cgroup cannot be made") from error
        self._fill()
        return Cgroup(name=name, tree=tree, cgroups=self)

    async def give_back(self, name: str) -> None:
        """Kill what is in a cgroup and remove it; what resists is tried again by `tidy`."""
        tree = self._survey.tree
        if tree is None:
            return
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while not await self._work.run(lambda: _clear(tree, name)):
            if asyncio.get_running_loop().time() >= deadline:
                log.warning("a cgroup is left", extra={"cgroup": name})
                self._left.add(name)
                return
            await asyncio.sleep(_PAUSE)

    async def tidy(self) -> None:
        """Remove what could not be removed before."""
        for name in list(self._left):
            self._left.discard(name)
            await self.give_back(name)

    def _fill(self) -> None:
        if self._refill is None or self._refill.done():
            self._refill = asyncio.create_task(self._make_ready(), name="cgroups")

    async def _make_ready(self) -> None:
        tree = self._survey.tree
        while tree is not None and len(self._ready) < _READY:
            await asyncio.sleep(_CALM_SECONDS)
            if self._is_over:
                return
            try:
                self._ready.append(await self._work.run(lambda: self._make(tree)))
            except OSError as error:
                log.warning("a cgroup cannot be made", extra={"cause": error.strerror})
                return

    def _make(self, tree: GroupTree) -> str:
        name = f"{self._epoch}-{next(self._numbers)}"
        tree.make(name)
        return name


def _clear(tree: GroupTree, name: str) -> bool:
    """Kill what is in a cgroup, or remove one that is empty; say whether it is gone."""
    with suppress(OSError):
        if tree.kill(name):
            tree.remove(name)
            return True
    return False
