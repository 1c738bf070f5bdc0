"""Who calls: the tenant of the request being served, set by the interceptors at the edge."""

from __future__ import annotations

from contextvars import ContextVar, Token

from chassis.errors import Unauthenticated

_tenant: ContextVar[str] = ContextVar("tenant")


def set_tenant(tenant: str) -> Token[str]:
    """Name the tenant of the current context; only an interceptor that has checked a key does."""
    return _tenant.set(tenant)


def reset_tenant(token: Token[str]) -> None:
    """Forget the tenant that `set_tenant` named."""
    _tenant.reset(token)


def current_tenant() -> str:
    """Return the caller's tenant; raises Unauthenticated where no key was checked."""
    try:
        return _tenant.get()
    except LookupError:
        raise Unauthenticated(
            "The request carries no API key.",
            reason="key_missing",
            remedy="Send the key as `Authorization: Bearer <key>`.",
        ) from None
