"""`isolate` and its kin: checks what a caller gives, opens the session, and loads the class."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from membrane.forwarding import Bond, Forwarding, ForwardingType, bond_of, handle_of
from membrane.frames import GET_MANY
from membrane.guard_rules import checked_names
from membrane.host import HostBond, guest_settings
from membrane.methods import checked_seconds
from membrane.outcomes import Outcomes
from membrane.policies import Policies, Policy, PolicyTrace, checked_policy
from membrane.proxies import ProxyClasses, RemoteType
from membrane.remote_batches import outcomes_of
from membrane.sessions import PREWARM_SECONDS, sessions

if TYPE_CHECKING:
    from membrane.parent_link import ParentLink
    from membrane.remote_child import Place
    from membrane.session import Fit, Session

MEMORY_BYTES = 2 << 30
"""Private memory of each process of a local child that is given no other limit."""

_LEAST_MEMORY = 32 << 20
GUEST = "membrane.guest:fit"
# Re-entrant: what is collected under it may isolate a class.
_lock = threading.RLock()
# A fork that another thread makes meanwhile would find it taken for ever.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
_classes: weakref.WeakKeyDictionary[Session, weakref.ref[ProxyClasses]] = (
    weakref.WeakKeyDictionary()
)
"""Those of each session, which its own `fit` keeps alive: held here they would keep it."""


def isolate(
    target: str,
    *,
    share_key: str | None = None,
    policy: str = "value",
    type_rules: Sequence[tuple[type, str]] = (),
    keepalive: float | None = None,
    isolation: str | None = None,
    tenant: str = "",
    trusted: bool = False,
    expose: Sequence[str] = (),
    preload: Sequence[str] = (),
    deadline: float | None = None,
    paths: Sequence[str] | None = None,
    memory_bytes: int | None = MEMORY_BYTES,
) -> type[Any]:
    """Give a proxy class of a class that lives in a child process and whose module is never
    imported here.

    `target` is "package.module:Class" or "package.module:Outer.Inner". Classes with the same
    `share_key` share a child, which stays `keepalive` seconds after the last close. `policy` and
    `type_rules` say what crosses by value and what by reference; `isolation` is "walled" or
    "process", by default the strongest that can be had. `expose` names what the child may use of
    the objects it is passed; `trusted` lifts that. `preload` names modules that are imported before
    the child is forked; `deadline` is in seconds and for every call. `paths` are directories where
    the child finds modules, besides Python's own. `memory_bytes` is what each process of the child
    may have as private memory, 2 GiB by default, None for no limit.

    Raises TypeError and ValueError for bad arguments, ModuleLeak when the module is imported here
    already, SessionConflict for a share key that is in use with other settings, and what importing
    the module raises.
    """
    wanted = Wanted(
        share_key=share_key,
        policy=policy,
        type_rules=type_rules,
        keepalive=keepalive,
        isolation=isolation,
        tenant=tenant,
        trusted=trusted,
        expose=expose,
        preload=preload,
        deadline=deadline,
        paths=paths,
        memory_bytes=memory_bytes,
    )
    return load_class(target, wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a caller wants of a session, unchecked: see `isolate`, and `remote.isolate_at` for a
    `place`.
    """

    share_key: str | None
    policy: str
    type_rules: Sequence[tuple[type, str]]
    keepalive: float | None
    expose: Sequence[str]
    preload: Sequence[str]
    deadline: float | None
    paths: Sequence[str] | None
    memory_bytes: int | None
    isolation: str | None = None
    tenant: str = ""
    trusted: bool = False
    place: Place | None = None
    python: str = ""


def load_class(target: str, wanted: Wanted) -> type[Any]:
    """Open a session, here or in a place, and load the class there."""
    module, _ = checked_target(target)
    classes, _ = _open(wanted, numeric=module.partition(".")[0] != "numpy", protect=module)
    try:
        loaded = classes.load(target)
        classes.use(loaded)
        classes.watch.keep(module)
        return loaded
    except BaseException:
        classes.watch.unprotect(module)
        sessions().close(classes.session)
        raise


def prewarm(
    share_key: str,
    *,
    policy: str = "value",
    type_rules: Sequence[tuple[type, str]] = (),
    keepalive: float | None = None,
    isolation: str | None = None,
    tenant: str = "",
    trusted: bool = False,
    expose: Sequence[str] = (),
    preload: Sequence[str] = (),
    deadline: float | None = None,
    paths: Sequence[str] | None = None,
    memory_bytes: int | None = MEMORY_BYTES,
) -> bool:
    """Start the child of a share key ahead of its use; False where the session is there already.

    Arguments and errors are those of `isolate`; `keepalive` is 30 s where none is given.
    """
    wanted = Wanted(
        share_key=share_key,
        policy=policy,
        type_rules=type_rules,
        keepalive=keepalive,
        isolation=isolation,
        tenant=tenant,
        trusted=trusted,
        expose=expose,
        preload=preload,
        deadline=deadline,
        paths=paths,
        memory_bytes=memory_bytes,
    )
    return start_ahead(wanted)


def start_ahead(wanted: Wanted) -> bool:
    """Start the child of a share key, here or in a place; False where the session is there."""
    if wanted.share_key is None:
        raise TypeError("prewarm needs a share_key: nobody finds another session again")
    classes, fresh = _open(wanted, numeric=True, protect=None, prewarmed=True)
    try:
        classes.session.link()
    except BaseException:
        if fresh:
            # No child waits there: nothing keeps the key from being used with other settings.
            classes.session.keepalive = 0.0
        raise
    finally:
        sessions().close(classes.session)
    return fresh


def close_session(share_key: str, *, tenant: str = "") -> bool:
    """End the session of a share key for all who use it; False where there is none. Never waits for
    a running call.
    """
    return sessions().close_key(checked_key(share_key), tenant=tenant)


def read_attributes(proxy: object, *names: str) -> Outcomes:
    """Read many attributes of a proxy, or of a proxy class, in one round trip: one outcome for each
    name, in order.
    """
    for name in names:
        if type(name) is not str:
            raise TypeError(f"the name of an attribute is a string, not {name!r}")
    bond: Bond | None
    if isinstance(proxy, ForwardingType) and proxy._membrane_described:
        bond, handle = proxy.membrane_class_bond()
    else:
        bond = bond_of(proxy)
        if bond is None or not isinstance(proxy, Forwarding):
            raise TypeError(f"read_attributes takes a proxy or a proxy class, not {proxy!r}")
        handle = handle_of(proxy)
    for name in names:
        if name.startswith("__") and name.endswith("__") and not bond.may_read(name):
            raise AttributeError(f"{name} of an untrusted child's object is not read", name=name)
    if not names:
        return Outcomes(results=[])
    extra, values = bond.request(GET_MANY, handle, "", list(names), ())
    return outcomes_of(bond, len(names), extra, values)


def effective_policy(proxy: object, value: object, call_policy: str | None = None) -> Policy:
    """Say how `value` would cross as an argument to `proxy`, or to a class's objects: "value" or
    "reference".
    """
    return policy_trace(proxy, value, call_policy).effective_policy


def policy_trace(proxy: object, value: object, call_policy: str | None = None) -> PolicyTrace:
    """Say how `value` would cross as an argument, what decides it, and the type whose rule it
    was.
    """
    call = None if call_policy is None else checked_policy(call_policy, name="call_policy")
    if isinstance(proxy, RemoteType) and proxy._membrane_described:
        return proxy._membrane_classes.policies.trace(value, call)
    bond = bond_of(proxy)
    if isinstance(bond, HostBond):
        return bond.policies.trace(value, call)
    raise TypeError(f"policies are asked of a proxy or a proxy class, not of {proxy!r}")


def checked_target(target: object) -> tuple[str, str]:
    """Split "package.module:Class"; raise TypeError or ValueError for anything else."""
    if type(target) is not str:
        raise TypeError(f'target is a string "package.module:Class", not {target!r}')
    module, colon, qualname = target.partition(":")
    parts = [*module.split("."), *qualname.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise ValueError(f'target is "package.module:Class", not {target!r}')
    return module, qualname


def checked_key(share_key: object) -> str:
    """Give a share key back; raise TypeError or ValueError for what is none."""
    if type(share_key) is not str:
        raise TypeError(f"share_key is a string, not {share_key!r}")
    if not share_key:
        raise ValueError("share_key is not empty; leave it out for a session of its own")
    return share_key


def checked_memory(value: object) -> int | None:
    """Give a limit of memory back; raise TypeError or ValueError for what is none."""
    if value is None:
        return None
    if type(value) is not int:
        raise TypeError(f"memory_bytes is a number of bytes or None, not {value!r}")
    if not _LEAST_MEMORY <= value < 1 << 63:
        raise ValueError(f"memory_bytes is at least {_LEAST_MEMORY}, below which no child starts")
    return value


def _open(
    wanted: Wanted, *, numeric: bool, protect: str | None, prewarmed: bool = False
) -> tuple[ProxyClasses, bool]:
    policies = Policies.checked(wanted.policy, wanted.type_rules)
    exposed = checked_names(wanted.expose)
    share_key, keepalive, deadline = wanted.share_key, wanted.keepalive, wanted.deadline
    if share_key is not None:
        checked_key(share_key)
    if type(wanted.trusted) is not bool:
        raise TypeError(f"trusted is True or False, not {wanted.trusted!r}")
    if type(wanted.tenant) is not str:
        raise TypeError(f"tenant is a string, not {wanted.tenant!r}")
    preload = wanted.preload
    if isinstance(preload, (str, bytes)) or not all(type(name) is str for name in preload):
        raise TypeError(f"preload is a sequence of names of modules, not {preload!r}")
    if keepalive is not None:
        keepalive = checked_seconds(keepalive, name="keepalive", zero=True)
    if deadline is not None:
        deadline = checked_seconds(deadline, name="deadline")
    memory_bytes = checked_memory(wanted.memory_bytes)
    made = ProxyClasses(policies=policies, trusted=wanted.trusted, expose=exposed)

    def fit(link: ParentLink, session: Session) -> HostBond:
        return HostBond(link=link, classes=made, numeric=numeric and link.child.has_numpy)

    with _lock:
        find = sessions().find
        fresh = (
            share_key is None or find(share_key, tenant=wanted.tenant, place=wanted.place) is None
        )
        if protect is not None and fresh:
            # Before there is a session: what is imported here already cannot be protected.
            made.watch.protect(protect)
        if prewarmed and fresh and keepalive is None:
            keepalive = PREWARM_SECONDS
        session = sessions().open_session(
            # A codec takes the regions that it made itself, and not any.
            fit=cast("Fit", fit),
            guest=GUEST,
            settings=guest_settings(
                policies, numeric=numeric, expose=exposed, memory_bytes=memory_bytes
            ),
            share_key=share_key,
            keepalive=keepalive,
            isolation=wanted.isolation,
            tenant=wanted.tenant,
            trusted=wanted.trusted,
            preload=tuple(preload),
            deadline=deadline,
            paths=wanted.paths,
            place=wanted.place,
            python=wanted.python,
        )
        made.session = session
        held = _classes.setdefault(session, weakref.ref(made))()
        classes = made if held is None else held
    if protect is not None and not fresh:
        try:
            classes.watch.protect(protect)
        except BaseException:
            sessions().close(session)
            raise
    return classes, fresh
