"""STUN and TURN servers of a session, with credentials of TURN that end by themselves.

The credentials are those of draft-uberti-behave-turn-rest-00, section 2.2, which coturn checks with
`use-auth-secret`: nothing is stored or asked, the relay shares a secret with signalling.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from chassis.errors import FailedPrecondition, InvalidArgument
from fairlead_tunnel.ice_urls import ice_url


class IcePolicy(StrEnum):
    """Which ways a session's two peers may meet."""

    ALL = "all"
    RELAY = "relay"
    DIRECT = "direct"


class IcePolicyUnknown(InvalidArgument):
    """A session is asked for with a policy that there is not."""

    def __init__(self, policy: str) -> None:
        super().__init__(
            "There is no such ICE policy.",
            reason="ice_policy_unknown",
            remedy="Use all, relay or direct.",
            fields={"ice_policy": policy[:64]},
        )


class RelayUnavailable(FailedPrecondition):
    """A session may only use a relay, and there is none."""

    def __init__(self) -> None:
        super().__init__(
            "The policy is relay, and signalling knows no TURN server.",
            reason="relay_unavailable",
            remedy="Set FAIRLEAD_SIGNALLING_TURN_URLS, or use the policy all.",
        )


@dataclass(frozen=True, slots=True)
class IceServer:
    """Servers that one peer may ask, as in WebRTC's RTCIceServer.

    The last three are of TURN servers only: until `expires_at` (UTC, whole seconds) the relay takes
    the credential for a new allocation. An allocation that is there then may be refreshed.
    """

    urls: tuple[str, ...]
    username: str = ""
    credential: str = ""
    expires_at: datetime | None = None


def ice_policy(text: str) -> IcePolicy:
    """Read a policy; none is `all`. Raises IcePolicyUnknown."""
    if not text:
        return IcePolicy.ALL
    try:
        return IcePolicy(text)
    except ValueError:
        raise IcePolicyUnknown(text) from None


def turn_credential(secret: str, username: str) -> str:
    """Return the password of a TURN user name: base64 of HMAC-SHA1 with the shared secret."""
    return base64.b64encode(hmac.digest(secret.encode(), username.encode(), hashlib.sha1)).decode()


class IceServers:
    """What sessions are handed out: the servers of the settings, credentials made for each."""

    def __init__(
        self,
        *,
        stun_urls: Sequence[str],
        turn_urls: Sequence[str],
        turn_secret: str,
        lifetime: timedelta,
    ) -> None:
        """Take valid URLs, and the secret of the relays among them, empty where there are none."""
        self._stun_urls = tuple(stun_urls)
        self._turn_urls = tuple(turn_urls)
        self._turn_secret = turn_secret
        self._lifetime = lifetime

    def for_session(
        self, session_id: str, policy: IcePolicy, *, now: datetime
    ) -> tuple[IceServer, ...]:
        """Return the servers of a session, with credentials that count from `now` (UTC).

        Each call makes them anew, so a peer that restarts ICE late asks again. The user name is the
        time of expiry and the session's id, which says nothing of the tenant. Raises
        RelayUnavailable.
        """
        stun = (IceServer(self._stun_urls),) if self._stun_urls else ()
        match policy:
            case IcePolicy.DIRECT:
                return stun
            case IcePolicy.RELAY if not self._turn_urls:
                raise RelayUnavailable
            case IcePolicy.RELAY:
                return (self._relay(session_id, now),)
            case IcePolicy.ALL:
                return (*stun, self._relay(session_id, now)) if self._turn_urls else stun

    def _relay(self, session_id: str, now: datetime) -> IceServer:
        expiry = math.ceil((now + self._lifetime).timestamp())
        username = f"{expiry}:{session_id}"
        return IceServer(
            urls=self._turn_urls,
            username=username,
            credential=turn_credential(self._turn_secret, username),
            expires_at=datetime.fromtimestamp(expiry, UTC),
        )


def stun_url_list(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the URLs in full, each once; raises IceUrlInvalid, also for the URL of a relay."""
    return _url_list(texts, is_relay=False)


def turn_url_list(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the URLs in full, each once; raises IceUrlInvalid, also for one without a relay."""
    return _url_list(texts, is_relay=True)


def _url_list(texts: Sequence[str], *, is_relay: bool) -> tuple[str, ...]:
    urls: dict[str, None] = {}
    for text in texts:
        url = ice_url(text)
        if url.is_relay is not is_relay:
            raise ValueError(f"{url} is not a URL of {'TURN' if is_relay else 'STUN'}.")
        urls[str(url)] = None
    return tuple(urls)
