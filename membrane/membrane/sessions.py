"""All sessions of this interpreter: by tenant and share key, counted, kept alive and closed."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from membrane.errors import SessionConflict
from membrane.pool import Pool
from membrane.remote_child import Place, RemoteChild, RemoteSpec
from membrane.service import Service, service
from membrane.session import Session, Terms
from membrane.spawning import Uids, ZygoteSpec
from membrane.walling import FIRST_UID, UIDS, wall_terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from membrane.children import Child
    from membrane.session import Fit

PREWARM_SECONDS = 30.0
"""Keepalive of a session that is prewarmed without one."""

_END_SECONDS = 0.5
_PAUSE = 0.005
_PATHS_KEPT = 16
"""Search paths whose real ones are remembered: to resolve seven entries takes 0.5 ms."""


class _Key(NamedTuple):
    tenant: str
    share_key: str
    place: Place | None


class Sessions:
    """The sessions of one interpreter."""

    def __init__(self, *, service: Service) -> None:
        self._service = service
        self._pool = Pool(service=service, uids=Uids(first=FIRST_UID, count=UIDS))
        self._by_key: dict[_Key, Session] = {}
        self._open: set[Session] = set()
        # Re-entrant: what is collected under it may close a class.
        self._lock = threading.RLock()
        service.tell(self)

    @property
    def service(self) -> Service:
        """What watches over them."""
        return self._service

    @property
    def pool(self) -> Pool:
        """Where its children come from."""
        return self._pool

    def open_session(
        self,
        *,
        fit: Fit,
        guest: str,
        settings: object,
        share_key: str | None = None,
        keepalive: float | None = None,
        isolation: str | None = None,
        tenant: str = "",
        trusted: bool = False,
        preload: Sequence[str] = (),
        deadline: float | None = None,
        paths: Sequence[str] | None = None,
        place: Place | None = None,
        python: str = "python3",
    ) -> Session:
        """Return a session, one more time in use: that of the share key where there is one.

        `guest` names what plugs the child's side in, as module:attribute, and `settings` is what
        that gets. With a `place` its child is born there by that Python, and `paths` are there. No
        process is started yet. Raises SessionConflict where the key is in use with other settings,
        UnsupportedUse where the isolation cannot be had, TypeError and ValueError.
        """
        check_seconds("keepalive", keepalive, least=0.0)
        check_seconds("deadline", deadline, least=sys.float_info.min)
        if keepalive is not None and share_key is None:
            raise ValueError("keepalive needs a share_key: nobody finds another session again")
        spec: ZygoteSpec | RemoteSpec
        if place is None:
            spec = _zygote_spec(isolation, paths, tenant, preload, guest)
        else:
            spec = RemoteSpec(place, python, remote_path(paths), tuple(preload))
        terms = Terms(
            share_key=share_key,
            tenant=tenant,
            spec=spec,
            settings=settings,
            trusted=trusted,
            deadline=deadline,
        )
        fresh = Session(
            terms=terms,
            keepalive=keepalive or 0.0,
            take=lambda: self._take(spec),
            service=self._service,
            fit=fit,
        )
        with self._lock:
            session = fresh if share_key is None else self._found(fresh, share_key, keepalive)
            self._open.add(session)
            session.users += 1
            session.idle += 1
            return session

    def close(self, session: Session) -> None:
        """Let one user go; the last one ends the session, after its keepalive. Never waits."""
        self._service.pump()
        with self._lock:
            if session not in self._open:
                return
            session.users -= 1
            if session.users > 0:
                return
            session.idle += 1
            turn = session.idle
            if session.keepalive <= 0:
                self._forget(session)
        if session.keepalive > 0:
            self._service.after(session.keepalive, lambda: self._end_idle(session, turn))
        else:
            session.end()

    def close_key(self, share_key: str, *, tenant: str = "", place: Place | None = None) -> bool:
        """End the session of a key for all its users; False where there is none."""
        with self._lock:
            session = self._by_key.get(_Key(tenant, share_key, place))
            if session is None:
                return False
            self._forget(session)
        session.end()
        return True

    def close_place(self, place: Place) -> None:
        """End all sessions of a place."""
        with self._lock:
            ending = [each for each in list(self._open) if each.place is place]
            for session in ending:
                self._forget(session)
        for session in ending:
            session.end()

    def find(
        self, share_key: str, *, tenant: str = "", place: Place | None = None
    ) -> Session | None:
        """Return the session of a key."""
        with self._lock:
            return self._by_key.get(_Key(tenant, share_key, place))

    def on_exit(self) -> None:
        """End everything; a child that is idle has a moment to end in order."""
        with self._lock:
            sessions = list(self._open)
            self._open.clear()
            self._by_key.clear()
        for session in sessions:
            session.end()
        ends_at = time.monotonic() + _END_SECONDS
        while any(session.has_child for session in sessions) and time.monotonic() < ends_at:
            self._service.pump()
            time.sleep(_PAUSE)
        self._pool.close()
        while self._pool.is_peopled and time.monotonic() < ends_at + _END_SECONDS:
            self._service.pump()
            time.sleep(_PAUSE)

    def on_fork(self) -> None:
        """Let go of everything."""
        for session in list(self._open):
            session.abandon()
        self._pool.abandon()
        _sessions.cache_clear()

    def _found(self, fresh: Session, share_key: str, keepalive: float | None) -> Session:
        """Return the session of the key of a fresh one, which it is where there is none."""
        key = _Key(fresh.tenant, share_key, fresh.place)
        while True:
            session = self._by_key.setdefault(key, fresh)
            if session is not fresh:
                _check_same(session, fresh.terms, keepalive)
            # What was collected during the check may have closed it.
            if self._by_key.get(key) is session:
                return session

    def _forget(self, session: Session) -> None:
        self._open.discard(session)
        if session.share_key is not None:
            key = _Key(session.tenant, session.share_key, session.place)
            self._by_key.pop(key, None)

    def _take(self, spec: ZygoteSpec | RemoteSpec) -> Child:
        if isinstance(spec, ZygoteSpec):
            return self._pool.take(spec)
        return RemoteChild(spec=spec, service=self._service)

    def _end_idle(self, session: Session, turn: int) -> None:
        with self._lock:
            # Used again meanwhile, or closed by its key.
            if session.users > 0 or session.idle != turn or session not in self._open:
                return
            self._forget(session)
        session.end()


def sessions() -> Sessions:
    """Return the sessions of this interpreter."""
    # A cache calls twice where two threads come first at one time: each would have its own.
    with _making:
        return _sessions()


@cache
def _sessions() -> Sessions:
    return Sessions(service=service())


# Re-entrant: what is collected meanwhile may close a class.
_making = threading.RLock()
os.register_at_fork(
    before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release
)


def check_seconds(name: str, value: object, *, least: float) -> None:
    """Raise TypeError or ValueError for what is no number of seconds from `least` on; None is
    fine.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a number of seconds, not {value!r}")
    if not math.isfinite(value) or value < least:
        raise ValueError(f"{name} is a finite number of seconds, at least {least:g}, not {value!r}")


def search_path(paths: Sequence[str] | None) -> tuple[str, ...]:
    """Return where the child looks for modules: as this process does, or in `paths` and where
    Python and its packages are. Only what there is, each once, by its real path.
    """
    if isinstance(paths, str | bytes):
        raise TypeError(f"paths is a sequence of directories, not {paths!r}")
    entries = tuple(entry or os.getcwd() for entry in (*(paths or ()), *sys.path))
    wanted = None if paths is None else frozenset(entries[: len(paths)])
    return _found(entries, wanted, tuple(map(_identity, entries)))


def _identity(entry: str) -> tuple[int, int] | None:
    """Say which file or directory an entry is: another one is looked for again."""
    try:
        found = os.stat(entry)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


@lru_cache(maxsize=_PATHS_KEPT)
def _found(
    entries: tuple[str, ...], wanted: frozenset[str] | None, _: tuple[object, ...]
) -> tuple[str, ...]:
    prefixes = tuple(f"{os.path.realpath(each)}/" for each in (sys.prefix, sys.base_prefix))
    own = os.path.realpath(Path(__file__).parents[1])
    found: dict[str, None] = {}
    for entry in entries:
        place = os.path.realpath(entry)
        is_wanted = wanted is None or entry in wanted or f"{place}/".startswith(prefixes)
        if is_wanted and os.path.exists(place):
            found[place] = None
    found[own] = None
    return tuple(found)


def remote_path(paths: Sequence[str] | None) -> tuple[str, ...]:
    """Return where a child elsewhere looks for modules first; raises TypeError."""
    if isinstance(paths, str | bytes) or not all(type(each) is str for each in paths or ()):
        raise TypeError(f"paths is a sequence of directories, not {paths!r}")
    return tuple(paths or ())


def _zygote_spec(
    isolation: str | None,
    paths: Sequence[str] | None,
    tenant: str,
    preload: Sequence[str],
    guest: str,
) -> ZygoteSpec:
    path = search_path(paths)
    walls = wall_terms(isolation, path)
    return ZygoteSpec(
        tenant=tenant,
        path=path + walls.path,
        preload=tuple(preload),
        guest=guest,
        terms=walls.terms,
        uids=walls.uids,
    )


def _python_of(terms: Terms) -> str:
    return terms.spec.python if isinstance(terms.spec, RemoteSpec) else ""


def _check_same(session: Session, terms: Terms, keepalive: float | None) -> None:
    held = session.terms
    share_key = terms.share_key or ""
    for setting, first, second in (
        ("isolation", held.spec.isolation, terms.spec.isolation),
        ("preload", held.spec.preload, terms.spec.preload),
        ("python", _python_of(held), _python_of(terms)),
        ("paths", held.spec.path, terms.spec.path),
        ("trusted", held.trusted, terms.trusted),
        ("deadline", held.deadline, terms.deadline),
        ("settings", held.settings, terms.settings),
    ):
        if first != second:
            raise SessionConflict(share_key=share_key, setting=setting, held=first, wanted=second)
    if keepalive is not None and keepalive != session.keepalive:
        raise SessionConflict(
            share_key=share_key, setting="keepalive", held=session.keepalive, wanted=keepalive
        )
