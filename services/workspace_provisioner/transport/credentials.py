"""The tenants' own credentials for origins: files below one directory, read when they are used,
so that they can be changed at any time. Nothing here is logged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from workspace_provisioner.origins import Origin
from workspace_provisioner.sources import checked_tenant

_MOST_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Login:
    """A name and a password for one host; neither is part of the text form."""

    user: str = field(repr=False)
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SshIdentity:
    """The key that a tenant logs in with, and the host keys that it trusts."""

    key: Path
    known_hosts: Path


class Credentials:
    """`<directory>/<tenant>/`: `git-credentials` (git-credential-store(1)), `ssh_key` and
    `known_hosts`. Without a directory nobody has any.
    """

    def __init__(self, *, directory: Path | None) -> None:
        self._directory = directory

    def login(self, tenant: str, origin: Origin) -> Login | None:
        """Return the tenant's login for an origin's host and port, or None."""
        folder = self._folder(tenant)
        if folder is None:
            return None
        try:
            with (folder / "git-credentials").open("rb") as file:
                lines = file.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
        except OSError:
            return None
        for line in lines:
            found = _login(line.strip(), origin)
            if found is not None:
                return found
        return None

    def identity(self, tenant: str) -> SshIdentity | None:
        """Return the tenant's key, or None where it lacks the key or the hosts to trust."""
        folder = self._folder(tenant)
        if folder is None:
            return None
        found = SshIdentity(folder / "ssh_key", folder / "known_hosts")
        return found if found.key.is_file() and found.known_hosts.is_file() else None

    def _folder(self, tenant: str) -> Path | None:
        return None if self._directory is None else self._directory / checked_tenant(tenant)


def _login(line: str, origin: Origin) -> Login | None:
    """Return what a line says for an origin; a path in it limits it to repositories below."""
    try:
        parts = urlsplit(line)
        port = parts.port or 443
    except ValueError:
        return None
    if parts.scheme != "https" or origin.scheme != "https":
        return None
    if (parts.hostname or "") != origin.host or port != origin.port or parts.username is None:
        return None
    path = parts.path.rstrip("/")
    if path and origin.path != path and not origin.path.startswith(f"{path}/"):
        return None
    return Login(unquote(parts.username), unquote(parts.password or ""))
