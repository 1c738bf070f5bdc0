"""What clients of SOCKS5 are answered: by the server in Python, and by the native one, too."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias, cast

from fairlead_tunnel.installed import is_installed
from fairlead_tunnel.socks5 import Asked, Credentials, Refused, Socks5Server

Answered: TypeAlias = tuple[bytes, str, str, bytes]
"""The answers, the target that is asked for, why the client is refused, and its early bytes."""
CREDENTIALS: Final = Credentials(b"ada", b"enigma")


class _Native(Protocol):
    """What is used of `fairlead_native`."""

    def serve_socks5(
        self, pieces: list[bytes], credentials: tuple[bytes, bytes] | None
    ) -> Answered: ...


def answered(pieces: Sequence[bytes], credentials: Credentials | None) -> Answered:
    """Serve a client that says these pieces, in Python."""
    server, outgoing = Socks5Server(credentials=credentials), b""
    for number, piece in enumerate(pieces):
        found = server.receive(piece)
        outgoing += server.take_outgoing()
        match found:
            case Asked(target, early):
                return outgoing, target.label, "", early + b"".join(pieces[number + 1 :])
            case Refused(message):
                return outgoing, "", message, b""
            case None:
                pass
    return outgoing, "", "", b""


def check_same(pieces: Sequence[bytes], credentials: Credentials | None) -> None:
    """Have both serve such a client; raises AssertionError where they differ."""
    expected = answered(pieces, credentials)
    if is_installed("fairlead_native"):
        native = cast(_Native, importlib.import_module("fairlead_native"))
        pair = None if credentials is None else (credentials.user, credentials.password)
        assert native.serve_socks5(list(pieces), pair) == expected
