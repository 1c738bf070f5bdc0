"""Zygotes and the children that wait for sessions: off the path of calls, bounded, and never shared
by tenants.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from membrane.errors import ChildLost
from membrane.spawning import Child, Uids, Zygote, ZygoteSpec

if TYPE_CHECKING:
    from membrane.service import Service

READY = 2
"""Children that wait per kind of zygote that is in use, about 4 MB each."""

MOST_CHILDREN = 256
"""Children of this process at one time, waiting ones included."""

IDLE_SECONDS = 60.0
"""After so long without use nobody waits any more, and a zygote without children ends."""

CALM_SECONDS = 0.01
"""Time for who has just got a child, before the next ones are forked."""

_TRIES = 5


class _Kind:
    """The zygotes of one spec, the newest last, and their children that wait."""

    def __init__(self) -> None:
        self.zygotes: list[Zygote] = []
        self.ready: deque[Child] = deque()
        self.is_refilling = False
        self.used_at = time.monotonic()
        # Re-entrant, as that of the pool: what is collected under them may open or close a session.
        self.lock = threading.RLock()


class Pool:
    """Hands out children; `uids` are those of walled ones."""

    def __init__(self, *, service: Service, uids: Uids) -> None:
        self._service = service
        self._uids = uids
        self._kinds: dict[ZygoteSpec, _Kind] = {}
        self._lock = threading.RLock()
        self._is_over = False

    def take(self, spec: ZygoteSpec) -> Child:
        """Return a child that nobody had before; raises ChildLost where there can be none."""
        with self._lock:
            if self._is_over:
                raise ChildLost("this interpreter is ending")
            kind = self._kinds.setdefault(spec, _Kind())
            kind.used_at = time.monotonic()
        if not kind.is_refilling:
            kind.is_refilling = True
            self._service.after(CALM_SECONDS, lambda: self._refill(spec, kind))
        while True:
            try:
                child = kind.ready.popleft()
            except IndexError:
                return self._fork(spec, kind)
            if not child.is_gone():
                return child
            child.close()

    @property
    def is_peopled(self) -> bool:
        """Whether a zygote is left."""
        return any(
            not each.is_buried for kind in list(self._kinds.values()) for each in kind.zygotes
        )

    def pids(self, spec: ZygoteSpec) -> list[int]:
        """Return the process ids of the zygotes of this kind."""
        kind = self._kinds.get(spec)
        return [zygote.pid for zygote in kind.zygotes] if kind is not None else []

    def close(self) -> None:
        """End all zygotes with all of their children."""
        with self._lock:
            self._is_over = True
            kinds = list(self._kinds.values())
        for kind in kinds:
            with kind.lock:
                for zygote in list(kind.zygotes):
                    zygote.close()

    def abandon(self) -> None:
        """Let go of all descriptors in a fork of this process."""
        for kind in self._kinds.values():
            for zygote in kind.zygotes:
                zygote.abandon()

    def _fork(self, spec: ZygoteSpec, kind: _Kind) -> Child:
        for attempt in range(_TRIES):
            with kind.lock:
                if sum(map(_living, list(self._kinds.values()))) >= MOST_CHILDREN:
                    raise ChildLost(f"{MOST_CHILDREN} children are in use; close sessions")
                zygote = kind.zygotes[-1] if kind.zygotes else None
                if zygote is None or not zygote.can_fork:
                    zygote = self._start(spec, kind)
            try:
                return zygote.fork()
            except ChildLost:
                if attempt == _TRIES - 1:
                    raise
        raise ChildLost("no zygote lives long enough to fork")

    def _start(self, spec: ZygoteSpec, kind: _Kind) -> Zygote:
        try:
            zygote = Zygote(
                spec=spec,
                uids=self._uids,
                service=self._service,
                changed=lambda: self._tidy(spec, kind),
            )
        except OSError as error:
            raise ChildLost(f"no zygote can be started: {error}") from error
        kind.zygotes.append(zygote)
        return zygote

    def _refill(self, spec: ZygoteSpec, kind: _Kind) -> None:
        """Have children ready for the next ones who come, while the kind is in use."""
        kind.is_refilling = False
        while len(kind.ready) < READY and not self._is_over:
            try:
                kind.ready.append(self._fork(spec, kind))
            except ChildLost:
                return
        self._service.after(IDLE_SECONDS, lambda: self._look_idle(spec, kind))

    def _look_idle(self, spec: ZygoteSpec, kind: _Kind) -> None:
        if not _is_idle(kind):
            return
        while kind.ready:
            kind.ready.popleft().close()
        self._tidy(spec, kind)

    def _tidy(self, spec: ZygoteSpec, kind: _Kind) -> None:
        """Forget the zygotes that are over, and end old ones that nobody needs."""
        is_idle = _is_idle(kind)
        with kind.lock:
            for zygote in list(kind.zygotes):
                if zygote.is_buried:
                    with contextlib.suppress(ValueError):  # one inside of this one was faster
                        kind.zygotes.remove(zygote)
                elif not zygote.children and (is_idle or not zygote.can_fork):
                    zygote.close()
        with self._lock:
            # Looked at again: who has just taken this kind may not have started its zygote yet.
            if not kind.zygotes and _is_idle(kind):
                self._kinds.pop(spec, None)


def _living(kind: _Kind) -> int:
    return sum(len(zygote.children) for zygote in kind.zygotes)


def _is_idle(kind: _Kind) -> bool:
    return time.monotonic() - kind.used_at >= IDLE_SECONDS
