"""Sessions by names that their clients made up: whichever way one is spelt, it is one session."""

from __future__ import annotations

from chassis.errors import InvalidArgument
from chassis.ids import derived_id, is_id, random_id
from fairlead_tunnel.session_names import SessionNameInvalid, is_session_id, session_name
from signalling.launch_request import check_key
from signalling.session_errors import SessionNotFound


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


class SessionNames:
    """The ids of sessions by what their clients call them; `key` is the stack's."""

    def __init__(self, *, key: bytes) -> None:
        self._key = key

    def given(self, tenant: str, key: str | None, conversation_id: str) -> str:
        """Return the id of a session that is to be opened: the one that an idempotency key or a
        conversation gives, else a random one. Raises SessionNameRefused.
        """
        if key is not None:
            check_key(key)
        if conversation_id:
            if is_id("ses", conversation_id):
                raise SessionNameRefused
            return session_id_of(conversation_id, tenant=tenant, key=self._key)
        if key is not None:
            return derived_id("ses", tenant, "session", key, key=self._key)
        return random_id("ses")

    def of_launch(self, tenant: str, launch_id: str) -> str:
        """Return the id of the session of a launch's own offer."""
        return derived_id("ses", tenant, "launch", launch_id, key=self._key)

    def meant(self, tenant: str, text: str) -> str:
        """Return the id that is meant by an id or a conversation; raises SessionNotFound."""
        try:
            return text if is_id("ses", text) else session_id_of(text, tenant=tenant, key=self._key)
        except SessionNameRefused:
            raise SessionNotFound(text) from None
