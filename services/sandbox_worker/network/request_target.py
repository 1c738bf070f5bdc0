"""What a proxy request asks for: `CONNECT host:port`, or an absolute `http://` URL (RFC 9112
section 3.2). Pure.

Strict where a proxy and an origin could read a request differently: the Host field must say what
the target says, and a target holds neither user information nor a fragment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chassis.allow_list import Host, parse_host, parse_port

_SCHEME = "http://"
_HTTP_PORT = 80

# Fields of one connection only (RFC 9110 section 7.6.1), and those that clients send to proxies.
_HOP_FIELDS = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"te", b"upgrade",
    }
)  # fmt: skip

Fields = list[tuple[bytes, bytes]]


class TargetInvalid(Exception):
    """The request asks for nothing that this proxy can give."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to go; `path` is empty for a tunnel, and in origin form (RFC 9112) otherwise."""

    host: Host
    port: int
    authority: str
    path: str

    @property
    def is_tunnel(self) -> bool:
        """Whether bytes are carried unread."""
        return not self.path


def read_target(method: bytes, target: bytes, fields: Iterable[tuple[bytes, bytes]]) -> Target:
    """Return what a request asks for; raises TargetInvalid."""
    try:
        text = target.decode("ascii")
        found = _tunnel(text) if method == b"CONNECT" else _absolute(text)
        _require_same_host(found, fields)
    except ValueError as error:
        raise TargetInvalid from error
    return found


def without_hop_fields(fields: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Return a message's fields without those that are meant for one connection only."""
    kept = list(fields)
    named = {
        name.strip().lower()
        for field, value in kept
        if field == b"connection"
        for name in value.split(b",")
    }
    # A client must not make the proxy drop how the message is delimited, or where it goes.
    dropped = (_HOP_FIELDS | named) - {b"host", b"content-length", b"transfer-encoding"}
    return [(name, value) for name, value in kept if name not in dropped]


def _tunnel(text: str) -> Target:
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError("a tunnel needs a port")
    return Target(host=parse_host(host), port=parse_port(port), authority=text, path="")


def _absolute(text: str) -> Target:
    if text[: len(_SCHEME)].lower() != _SCHEME or "#" in text:
        raise ValueError("it is no absolute http URL")
    rest = text[len(_SCHEME) :]
    end = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    authority, path = rest[:end], rest[end:]
    host, port = _authority(authority)
    path = path if path.startswith("/") else "/" + path
    return Target(host=host, port=port or _HTTP_PORT, authority=authority, path=path)


def _authority(text: str) -> tuple[Host, int | None]:
    if "@" in text:
        raise ValueError("user information in a target")
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return parse_host(text), None
    return parse_host(host), parse_port(port)


def _require_same_host(target: Target, fields: Iterable[tuple[bytes, bytes]]) -> None:
    for name, value in fields:
        if name == b"host":
            host, port = _authority(value.decode("ascii"))
            expected = (None, target.port) if target.is_tunnel else (target.port,)
            given = port if target.is_tunnel else port or _HTTP_PORT
            if host != target.host or given not in expected:
                raise ValueError("the Host field says something else")
