"""Who calls: tenant and rights of the request being served, set by the interceptors at the edge."""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import dataclass

from chassis.errors import PermissionDenied, Unauthenticated


class AdminRequired(PermissionDenied):
    """The caller's key has no rights beyond its own tenant."""

    def __init__(self) -> None:
        super().__init__(
            "This needs the key of an administrator.",
            reason="admin_required",
            remedy="Use a key that `fairlead-key add --admin` made.",
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant, whether its key may reach what is other tenants', and the id of the key."""

    tenant: str
    is_admin: bool = False
    key_id: str = ""


_caller: ContextVar[Caller] = ContextVar("caller")


def set_caller(caller: Caller) -> Token[Caller]:
    """Name the caller of the current context; only an interceptor that has checked a key does."""
    return _caller.set(caller)


def reset_caller(token: Token[Caller]) -> None:
    """Forget the caller that `set_caller` named."""
    _caller.reset(token)


def current_tenant() -> str:
    """Return the caller's tenant; raises Unauthenticated where no key was checked."""
    return _current().tenant


def current_key_id() -> str:
    """Return the id of the key that what runs here was asked for with; empty for our own work."""
    caller = _caller.get(None)
    return caller.key_id if caller is not None else ""


def check_admin() -> None:
    """Raise AdminRequired unless the caller is an administrator, Unauthenticated where no key was
    checked.
    """
    if not _current().is_admin:
        raise AdminRequired


def listed_tenant(wanted: str) -> str:
    """Return the tenant whose things are listed, the caller's where none is named; raises
    AdminRequired for another one.
    """
    tenant = current_tenant()
    if wanted and wanted != tenant:
        check_admin()
    return wanted or tenant


def _current() -> Caller:
    try:
        return _caller.get()
    except LookupError:
        raise Unauthenticated(
            "The request carries no API key.",
            reason="key_missing",
            remedy="Send the key as `Authorization: Bearer <key>`.",
        ) from None
