"""Opens sessions with the smallest fittings, and waits for processes to be gone."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Iterator

import pytest

from membrane.children import FREE_SECONDS
from membrane.parent_link import ParentLink
from membrane.session import Session
from membrane.sessions import Sessions, search_path, sessions
from membrane.spawning import ZygoteSpec
from membrane.walling import wall_terms
from tests.contract.membrane.plain_fittings import fit_parent
from tests.eventually import SECONDS

GUEST = "tests.contract.membrane.plain_fittings:fit_child"
ISOLATIONS = ("process", "walled")
Table = dict[str, Callable[..., object]]


def need(isolation: str) -> str:
    """Return the isolation; skips the test where this machine has no walls."""
    if isolation == "walled":
        found = wall_terms(None, search_path(None))
        if not found.terms:
            pytest.skip(f"no walls: {found.reason}")
    return isolation


def open_plain(
    *,
    table: Table | None = None,
    isolation: str = "process",
    share_key: str | None = None,
    keepalive: float | None = None,
    tenant: str = "",
    deadline: float | None = None,
    preload: tuple[str, ...] = (),
    settings: object = None,
    guest: str = GUEST,
    among: Sessions | None = None,
) -> Session:
    """Open a session, among those of this process."""
    return (among or sessions()).open_session(
        fit=fit_parent(table or {}),
        guest=guest,
        settings=settings,
        share_key=share_key,
        keepalive=keepalive,
        isolation=isolation,
        tenant=tenant,
        deadline=deadline,
        preload=preload,
    )


def spec_of(session: Session) -> ZygoteSpec:
    """Return what the zygotes of a session's children are started with."""
    spec = session.terms.spec
    assert isinstance(spec, ZygoteSpec)
    return spec


@contextlib.contextmanager
def plain_link(
    table: Table | None = None,
    *,
    isolation: str = "process",
    deadline: float | None = None,
    free_seconds: float = FREE_SECONDS,
) -> Iterator[ParentLink]:
    """Have a child for a while, with so many seconds to end a call that is cancelled."""
    session = open_plain(table=table, isolation=isolation, deadline=deadline)
    try:
        link = session.link()
        link.child.free_seconds = free_seconds
        yield link
    finally:
        sessions().close(session)


@contextlib.contextmanager
def watched(*pids: int) -> Iterator[Callable[[], bool]]:
    """Yield what waits until all these processes are gone, and says whether they are."""
    descriptors = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptors.append(os.pidfd_open(pid))

    def wait() -> bool:
        for descriptor in descriptors:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(SECONDS * 1000):
                return False
        return True

    try:
        yield wait
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
