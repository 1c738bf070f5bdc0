"""One spelling of a session's name: some peers write an id in base64url, others in base64."""

from __future__ import annotations

import re
from typing import Final

from fairlead_tunnel.base64url import from_base64url

SHORTEST: Final = 16
LONGEST: Final = 64

_SESSION_ID = re.compile(r"ses_[a-z2-7]{26}")
_URL_SAFE = re.compile(r"[A-Za-z0-9_-]+")
_STANDARD = re.compile(r"[A-Za-z0-9+/]+")


class SessionNameInvalid(ValueError):
    """A text names no session, in either spelling."""

    def __init__(self) -> None:
        super().__init__(
            f"A session's name is its id, or {SHORTEST} to {LONGEST} bytes in base64 or base64url."
        )


def is_session_id(name: str) -> bool:
    """Say whether a name in its one spelling is an id that signalling gave."""
    return _SESSION_ID.fullmatch(name) is not None


def session_name(text: str) -> str:
    """Return the one spelling of a session's id or of a name that its client made up: base64url
    without padding (RFC 4648, section 5).

    A name is 16 to 64 bytes. Both alphabets are taken, with padding and without; raises
    SessionNameInvalid for a mixture of the two, wrong padding, and bits that no encoder sets.
    """
    bare = text.rstrip("=")
    padding = len(text) - len(bare)
    if padding and (padding > 2 or len(text) % 4):
        raise SessionNameInvalid
    if not (_URL_SAFE.fullmatch(bare) or _STANDARD.fullmatch(bare)):
        raise SessionNameInvalid
    name = bare.replace("+", "-").replace("/", "_")
    # An id is no base64, but a gateway that thinks so changes its `_` all the same.
    if is_session_id(name):
        return name
    try:
        length = len(from_base64url(name))
    except ValueError:
        raise SessionNameInvalid from None
    if not SHORTEST <= length <= LONGEST:
        raise SessionNameInvalid
    return name
