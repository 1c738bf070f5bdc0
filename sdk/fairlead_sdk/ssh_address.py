"""Addresses of hosts over SSH: `ssh://user@host[:port]/directory`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from fairlead_sdk.ssh_errors import AddressInvalid

# Neither can be taken for an option by ssh, or for anything by a shell.
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,127}")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}|[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")


@dataclass(frozen=True, slots=True)
class SshAddress:
    """Where a host is: `user` is empty and `port` 0 where ssh's own configuration decides.

    `root` is the host's directory, absolute or beginning with `~/`.
    """

    user: str
    host: str
    port: int
    root: str

    @classmethod
    def read(cls, text: str) -> SshAddress:
        """Read an address; raises `AddressInvalid`."""
        try:
            parts = urlsplit(text)
            port = parts.port or 0
        except ValueError:
            raise AddressInvalid(text, "the port is no number up to 65535") from None
        if parts.scheme != "ssh":
            raise AddressInvalid(text, "it does not begin with ssh://")
        if parts.password is not None or parts.query or parts.fragment:
            raise AddressInvalid(text, "it holds a password, a '?' or a '#'")
        user, host, root = unquote(parts.username or ""), parts.hostname or "", unquote(parts.path)
        # urlsplit makes the host lower-case; aliases in ssh's configuration tell cases apart.
        at = parts.netloc.rpartition("@")[2]
        host = at[: len(host)] if at.lower().startswith(host) else host
        if (user and not _USER.fullmatch(user)) or not _HOST.fullmatch(host):
            raise AddressInvalid(text, "user or host is not one that ssh takes")
        root = root.removeprefix("/") if root.startswith("/~/") else root
        if (
            root.rstrip("/") in ("", "~", "/~")
            or not root.isprintable()
            or any(c in root for c in ':"')
        ):
            raise AddressInvalid(text, "it ends in no directory that workspaces can be below")
        return cls(user, host, port, root.rstrip("/"))

    @property
    def destination(self) -> str:
        """How ssh is told of it, and a person too."""
        return f"{self.user}@{self.host}" if self.user else self.host

    def __str__(self) -> str:
        """Return the address in its usual form, which holds no space."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port else ""
        user = f"{self.user}@" if self.user else ""
        root = self.root if self.root.startswith("/") else f"/{self.root}"
        return f"ssh://{user}{host}{port}{quote(root, safe='/~')}"
