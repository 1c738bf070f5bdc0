"""Sessions by names that their clients made up: whichever way one is spelt, it is one session."""

from __future__ import annotations

from chassis.errors import InvalidArgument
from chassis.ids import derived_id
from fairlead_tunnel.session_names import SessionNameInvalid, is_session_id, session_name


class SessionNameRefused(InvalidArgument):
    """A text is neither a session's id nor a name that a client may give one."""

    def __init__(self) -> None:
        super().__init__(
            "This names no session.",
            reason="session_name_invalid",
            remedy="Use the session's id, or 16 to 64 random bytes in base64url or base64.",
        )


def session_id_of(text: str, *, tenant: str, key: bytes) -> str:
    """Return the id of the session that a tenant means: `text` is an id or a client's own name, in
    any spelling that `session_name` takes; raises SessionNameRefused.

    A name gives the id that is derived from it with the stack's `key`, so that a name need not be
    stored to be found, and one tenant's name leads to no other tenant's session.
    """
    try:
        name = session_name(text)
    except SessionNameInvalid:
        raise SessionNameRefused from None
    return name if is_session_id(name) else derived_id("ses", tenant, "named", name, key=key)
