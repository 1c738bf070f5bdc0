"""`isolate_at` and its kin: the same proxies, of classes that live in another place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from membrane.isolating import Wanted, checked_key, load_class, start_ahead
from membrane.sessions import sessions

if TYPE_CHECKING:
    from membrane.remote_child import Place


def isolate_at(
    place: Place,
    target: str,
    *,
    python: str = "python3",
    share_key: str | None = None,
    policy: str = "value",
    type_rules: Sequence[tuple[type, str]] = (),
    keepalive: float | None = None,
    expose: Sequence[str] = (),
    preload: Sequence[str] = (),
    deadline: float | None = None,
    paths: Sequence[str] = (),
    memory_bytes: int | None = None,
) -> type[Any]:
    """Give a proxy class of a class that lives in a place; see `isolate`.

    `python` is the program there, `paths` are directories there, relative to where programs of the
    place start; that directory itself is searched first. A `share_key` is one of this place.
    `memory_bytes` is None by default: the limits of the place hold.
    """
    wanted = Wanted(
        share_key=share_key,
        policy=policy,
        type_rules=type_rules,
        keepalive=keepalive,
        expose=expose,
        preload=preload,
        deadline=deadline,
        paths=paths,
        memory_bytes=memory_bytes,
        place=place,
        python=_checked_python(python),
    )
    return load_class(target, wanted)


def prewarm_at(
    place: Place,
    share_key: str,
    *,
    python: str = "python3",
    policy: str = "value",
    type_rules: Sequence[tuple[type, str]] = (),
    keepalive: float | None = None,
    expose: Sequence[str] = (),
    preload: Sequence[str] = (),
    deadline: float | None = None,
    paths: Sequence[str] = (),
    memory_bytes: int | None = None,
) -> bool:
    """Start the child of a share key of a place ahead of its use; see `prewarm`."""
    wanted = Wanted(
        share_key=share_key,
        policy=policy,
        type_rules=type_rules,
        keepalive=keepalive,
        expose=expose,
        preload=preload,
        deadline=deadline,
        paths=paths,
        memory_bytes=memory_bytes,
        place=place,
        python=_checked_python(python),
    )
    return start_ahead(wanted)


def close_session_at(place: Place, share_key: str) -> bool:
    """End the session of a share key of a place for all who use it; False where there is none.
    Never waits for a running call.
    """
    return sessions().close_key(checked_key(share_key), place=place)


def close_place(place: Place) -> None:
    """End all sessions of a place; never waits for a running call."""
    sessions().close_place(place)


def _checked_python(python: object) -> str:
    if type(python) is not str or not python or "\0" in python:
        raise ValueError(f"python is the name or the path of a program, not {python!r}")
    return python
