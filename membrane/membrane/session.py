"""A session: what a share key, or one class without a key, stands for; it outlives its children."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from membrane.errors import ChildLost
from membrane.parent_link import ParentLink
from membrane.remote_child import RemoteSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from membrane.children import Child
    from membrane.fittings import Fittings
    from membrane.remote_child import Place
    from membrane.service import Service
    from membrane.spawning import ZygoteSpec

    Fit = Callable[[ParentLink, "Session"], Fittings]

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Terms:
    """What a session was opened with; sessions are shared by those who give equal ones."""

    share_key: str | None
    tenant: str
    spec: ZygoteSpec | RemoteSpec
    settings: object
    trusted: bool
    deadline: float | None


class Session:
    """One child at a time, replaced when it is gone; counted by those who opened it."""

    def __init__(
        self,
        *,
        terms: Terms,
        keepalive: float,
        take: Callable[[], Child],
        service: Service,
        fit: Fit,
    ) -> None:
        """`take` gives a child that nobody had before. `keepalive` is how many seconds the child
        stays after the last close. `users` and `idle` are for who counts them: those who have it
        now, and how often that came to change.
        """
        self.terms = terms
        self.keepalive = keepalive
        self.users = 0
        self.idle = 0
        self._take = take
        self._service = service
        self._fit = fit
        self._link: ParentLink | None = None
        # Re-entrant: what is collected under it may use the session.
        self._lock = threading.RLock()
        self._is_closed = False

    @property
    def share_key(self) -> str | None:
        """The key under which others find it; None for a session of its own."""
        return self.terms.share_key

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.terms.tenant

    @property
    def place(self) -> Place | None:
        """Where its child is born; None for a process of this machine."""
        spec = self.terms.spec
        return spec.place if isinstance(spec, RemoteSpec) else None

    @property
    def isolation(self) -> str:
        """How its child is kept apart: `walled` or `process`."""
        return self.terms.spec.isolation

    @property
    def trusted(self) -> bool:
        """Whether its child is not taken for hostile."""
        return self.terms.trusted

    @property
    def settings(self) -> object:
        """What the child is told of it."""
        return self.terms.settings

    @property
    def has_child(self) -> bool:
        """Whether a process is left of it."""
        return self._link is not None and not self._link.child.is_over

    def link(self) -> ParentLink:
        """Return the link to the living child, a fresh one where there is none; raises ChildLost
        where there can be none, or the session is closed.
        """
        self._service.pump()
        link = self._link
        if link is not None and link.look_alive():
            return link
        with self._lock:
            if self._link is None or not self._link.look_alive():
                opened, held = self._open(), self._link
                if held is not None and held.look_alive():
                    opened.end("another child was there before", kill=False)
                    return held
                self._link = opened
                # A close that came before it was there to be seen has not ended it.
                if self._is_closed:
                    opened.end("the session was closed", kill=False)
            return self._link

    def end(self) -> None:
        """Close it for good: calls under way raise ChildLost. Never waits for one."""
        self._is_closed = True
        link = self._link
        if link is not None:
            link.end("the session was closed", kill=False)

    def abandon(self) -> None:
        """Let go of it in a fork of this process."""
        self._is_closed = True
        # One who opened it as the fork was made is not in it to let go of the lock.
        self._lock = threading.RLock()
        if self._link is not None:
            self._link.abandon()

    def _open(self) -> ParentLink:
        terms = self.terms
        for attempt in range(_TRIES):
            if self._is_closed:
                raise ChildLost("the session was closed; isolate the class again")
            link = ParentLink(
                child=self._take(),
                isolation=self.isolation,
                service=self._service,
                deadline=terms.deadline,
            )
            try:
                link.open(terms.settings, lambda link: self._fit(link, self))
            except ChildLost:
                if link.child.refusal is not None:
                    raise link.child.refusal from link.child.refusal.__cause__
                if attempt == _TRIES - 1:
                    raise
                continue
            return link
        raise ChildLost("no child lives long enough to be used")
