"""The faults that a diagnosis knows, each as an error that says what is wrong and what to do."""

from __future__ import annotations

import errno
import re
import ssl
from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from fairlead_sdk.errors import (
    FailedPrecondition,
    FairleadError,
    MeshUnavailable,
    Unauthenticated,
    Unavailable,
)

_OPEN_UDP = (
    "Let UDP pass between this machine and the gateway, or give signalling a TURN server "
    "(FAIRLEAD_SIGNALLING_TURN_URLS)."
)
_NUMBER = re.compile(r"\[Errno (\d+)\]")
_NO_ROUTE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN})


def name_unknown(host: str) -> MeshUnavailable:
    """No address belongs to the front door's name."""
    return MeshUnavailable(
        f"The name {host} has no address.",
        reason="name_unknown",
        remedy="Check the name in FAIRLEAD_URL, and whether this machine's DNS (VPN?) knows it.",
        fields={"host": host},
    )


def not_reached(url: str, error: FairleadError) -> FairleadError:
    """The front door does not answer; what the operating system said of it tells why."""
    sentence, remedy = error.message, error.remedy
    match _cause(error):
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
            sentence = f"What listens at {url} does not speak TLS."
            remedy = "Begin FAIRLEAD_URL with http://, or give the port of the TLS proxy."
        case ssl.SSLError() as cause:
            detail = getattr(cause, "verify_message", "") or cause.reason or "TLS failed"
            sentence = f"{url} cannot be trusted: {detail}."
            remedy = (
                "Use the name that the certificate is for, or name its authority in SSL_CERT_FILE."
            )
        case errno.ECONNREFUSED:
            sentence = f"Nothing listens at {url}: the connection was refused."
            remedy = "Start the stack with `fairlead up`, or correct the port in FAIRLEAD_URL."
        case number if number in _NO_ROUTE:
            sentence = f"This machine has no way to {url}."
            remedy = "Look at this machine's network, its routes and its VPN."
        case _ if error.reason == "mesh_unreachable":
            sentence = f"{url} does not answer: connecting took too long."
            remedy = (
                "See whether a firewall drops the connection, and whether the address is right."
            )
        case _ if error.reason == "connection_lost":
            sentence = f"{url} takes a connection and ends it without an answer."
            remedy = (
                "See whether FAIRLEAD_URL should begin with https://, and what is at that port."
            )
    return MeshUnavailable(sentence, reason=error.reason, remedy=remedy)


def not_a_front_door(url: str, status: str) -> MeshUnavailable:
    """Something else answers there."""
    what = f" (status {status})" if status else ""
    return MeshUnavailable(
        f"What answers at {url} is no Fairlead front door{what}.",
        reason="not_a_front_door",
        remedy="Correct FAIRLEAD_URL; a proxy or the login page of a network may answer instead.",
    )


def key_refused(*, has_key: bool) -> Unauthenticated:
    """The front door does not know the key, or was shown none."""
    return Unauthenticated(
        "The front door does not know this key." if has_key else "No key is set.",
        reason="key_refused" if has_key else "key_missing",
        remedy="Set FAIRLEAD_API_KEY to a key of this mesh; `fairlead-key add` makes one.",
    )


def websocket_refused(error: FairleadError | None, *, proxy: str) -> Unavailable:
    """REST works and a WebSocket does not; `proxy` is the variable that names a proxy, if any."""
    status = (error.reason if error is not None else "").removeprefix("http_")
    if proxy and isinstance(error, MeshUnavailable):
        return Unavailable(
            f"A WebSocket goes past the proxy of {proxy}, and does not reach the front door.",
            reason="websocket_refused",
            remedy=f"Let this machine reach the front door without {proxy}.",
        )
    if status.isdigit():
        sentence = f"A WebSocket was refused with status {status}, where REST works."
    elif error is None:
        sentence = "A WebSocket opened and was closed, or carried nothing."
    else:
        sentence = "The connection ended when a WebSocket was asked for, where REST works."
    return Unavailable(
        sentence,
        reason="websocket_refused",
        remedy="Have the proxy before the front door pass `Upgrade: websocket` for /v1/ "
        "(nginx: proxy_http_version 1.1, and the headers Upgrade and Connection).",
    )


def nothing_held() -> FailedPrecondition:
    """No launch was named, and none holds a sandbox."""
    return FailedPrecondition(
        "No launch of yours holds a sandbox, so there is nothing to connect to.",
        reason="nothing_held",
        remedy="Run `fairlead launch` without a command, and diagnose again.",
    )


def ice_server_fails(url: str, outcome: str, sentence: str, remedy: str) -> Unavailable:
    """A STUN or TURN server does not do what sessions need of it; `outcome` says why."""
    return Unavailable(f"{url}: {sentence}", reason=outcome, remedy=remedy, fields={"url": url})


def turn_missing() -> FailedPrecondition:
    """Only a relay may be used, and there is none."""
    return FailedPrecondition(
        "Only a relay may be used, and signalling hands out no TURN server.",
        reason="relay_unavailable",
        remedy="Set FAIRLEAD_SIGNALLING_TURN_URLS, or probe without --relay-only.",
    )


def gateway_silent(addresses: Sequence[str], *, stun_works: bool | None) -> Unavailable:
    """No packet came back from any address of the gateway; `stun_works` is None if not known."""
    if not addresses:
        return Unavailable(
            "The gateway's answer names no address to send to.",
            reason="gateway_without_address",
            remedy="Look at the gateway's network: it found no address of its own.",
        )
    listed = ", ".join(addresses)
    sentence = f"No UDP packet comes back from the gateway at {listed}."
    remedy = _OPEN_UDP
    if all(_is_private(address) for address in addresses):
        sentence += " These addresses are private: only machines of that network reach them."
        remedy = (
            "Be in the gateway's network (VPN), run the gateway on the host's network, or give "
            "signalling a TURN server (FAIRLEAD_SIGNALLING_TURN_URLS)."
        )
    elif stun_works is False:
        sentence += " STUN does not answer either: this network seems to block UDP."
    elif stun_works:
        sentence += " STUN answers, so UDP leaves this network: the gateway's side is shut."
    return Unavailable(
        sentence, reason="gateway_silent", remedy=remedy, fields={"addresses": listed}
    )


def answer_senseless() -> Unavailable:
    """The gateway's answer cannot be read."""
    return Unavailable(
        "The gateway's answer is no description that can be used.",
        reason="answer_invalid",
        remedy="See that gateway and client are of the same version.",
    )


def association_failed(seconds: float) -> Unavailable:
    """A path was found, but no association over it."""
    return Unavailable(
        f"A path was found, but DTLS and SCTP did not come up over it in {seconds:g} seconds.",
        reason="association_failed",
        remedy="A filter may pass small packets only (MTU, VPN), or the gateway is overloaded: "
        "look at its log.",
    )


def association_lost(seconds: float) -> Unavailable:
    """An open connection ended while it was held."""
    return Unavailable(
        f"The connection was lost after {seconds:.1f} seconds.",
        reason="tunnel_lost",
        remedy="See whether the launch or the gateway ended; else a NAT or firewall forgets UDP "
        "that soon.",
    )


def candidate_addresses(description: str) -> tuple[str, ...]:
    """Return the addresses of a description's candidates, each once (RFC 8839, section 5.1)."""
    found = [
        line.split()[4]
        for line in description.splitlines()
        if line.startswith("a=candidate:") and len(line.split()) > 4
    ]
    return tuple(dict.fromkeys(found))


def _is_private(address: str) -> bool:
    try:
        return ip_address(address).is_private
    except ValueError:
        return False


def _cause(error: BaseException) -> ssl.SSLError | int | None:
    """Return what is at the bottom of an error: one of TLS, the number of one of the system."""
    for each in _chain(error):
        if isinstance(each, ssl.SSLError):
            return each
        if isinstance(each, OSError) and each.errno:
            return each.errno
        if isinstance(each, OSError) and (found := _NUMBER.search(str(each))):
            return int(found[1])
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, BaseExceptionGroup):
            waiting.extend(each.exceptions)
        waiting.extend(more for more in (each.__context__, each.__cause__) if more is not None)
