"""Where a project comes from: the addresses of origins, and what is said about their tips. Pure.

An address never holds credentials: they are the tenant's, and are looked up where it is dialled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from chassis.limits import check_branch, check_size
from fairlead_limits.table import ADDRESS, MAX_AGE
from workspace_provisioner.errors import FieldInvalid
from workspace_provisioner.sources import Source, Upstream

DEFAULT_MAX_AGE = timedelta(seconds=30)

_HOST = re.compile(r"(?!-)[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,63}")
_SCP = re.compile(
    r"(?:(?P<user>[^@/:\s]+)@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^@/:\[\]\s]+):(?P<path>[^:].*)"
)
_STANDARD_PORTS = {"https": 443, "ssh": 22}


@dataclass(frozen=True, slots=True)
class Origin:
    """An address that a host may fetch from. `path` is what the other side is asked for: it starts
    with a slash unless it is one of ssh's, relative to the home directory there.
    """

    scheme: str
    host: str
    port: int
    path: str
    user: str = ""

    @property
    def text(self) -> str:
        """Return the address as one text, the same for the same place."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        port = "" if self.port == _STANDARD_PORTS[self.scheme] else f":{self.port}"
        path = self.path if self.path.startswith("/") else f"/~/{self.path}"
        return f"{self.scheme}://{user}{host}{port}{path}"

    @property
    def git_url(self) -> str:
        """Return the address as git on any machine understands it."""
        if self.scheme == "ssh" and not self.path.startswith(("/", "~")) and self.port == 22:
            host = f"[{self.host}]" if ":" in self.host else self.host
            return f"{self.user}@{host}:{self.path}" if self.user else f"{host}:{self.path}"
        return self.text

    def related(self, url: str) -> Origin:
        """Return what a submodule's URL means here: relative ones (`./`, `../`) start from this
        address, as in gitsubmodules(7). Raises FieldInvalid.
        """
        if not url.startswith(("./", "../")):
            return checked_origin(url)
        parts = [part for part in self.path.split("/") if part]
        for part in url.split("/"):
            if part == "..":
                if not parts:
                    raise _invalid("leaves the host that it is relative to")
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        if not parts:
            raise _invalid("names no repository")
        slash = "/" if self.path.startswith("/") else ""
        return replace(self, path=_checked_path(slash + "/".join(parts)))


def checked_origin(url: str) -> Origin:
    """Return the origin that a URL names: `https://…`, `ssh://…` or `user@host:path`; raises
    FieldInvalid for any other, and for one that holds credentials.
    """
    check_size(ADDRESS, len(url))
    if not url.isprintable() or " " in url:
        raise _invalid("must hold printable characters without spaces")
    if "://" not in url:
        found = _SCP.fullmatch(url)
        if found is None:
            raise _invalid("must begin with https:// or ssh://")
        host = found["host"].strip("[]")
        return _checked("ssh", host, 22, _checked_path(found["path"]), found["user"] or "")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise _invalid("is malformed") from None
    scheme = parts.scheme.lower()
    if scheme not in _STANDARD_PORTS:
        raise _invalid("must begin with https:// or ssh://")
    if parts.password is not None or (scheme == "https" and parts.username is not None):
        raise _invalid("must not hold credentials", "Keep them on the host, one file per tenant.")
    if parts.query or parts.fragment or not parts.path.strip("/"):
        raise _invalid("must name a repository, without a query or a fragment")
    path = parts.path.rstrip("/")
    if scheme == "ssh":
        path = unquote(path)
        if path.startswith("/~"):
            path = path.removeprefix("/").removeprefix("~/")
    user = parts.username or ""
    return _checked(scheme, host, port or _STANDARD_PORTS[scheme], _checked_path(path), user)


def _checked(scheme: str, host: str, port: int, path: str, user: str) -> Origin:
    if not _HOST.fullmatch(host):
        raise _invalid("names no host")
    if scheme == "ssh" and not _USER.fullmatch(user or "git"):
        raise _invalid("names a user that cannot be one")
    if not 1 <= port <= 65535:
        raise _invalid("names no port")
    return Origin(scheme, host.lower().rstrip("."), port, path, user)


def _checked_path(path: str) -> str:
    """Return a path that no shell, header or option parser can take for something else."""
    if not path.isprintable() or "'" in path or "\\" in path or path.startswith("-"):
        raise _invalid("holds characters that a path of a repository must not have")
    if not path.strip("/"):
        raise _invalid("names no repository")
    return path


def _invalid(
    rule: str, remedy: str = "Give the https or ssh address of the repository."
) -> FieldInvalid:
    return FieldInvalid("origin", rule, remedy=remedy)


def checked_upstream(url: str, branch: str, max_age: timedelta | None) -> Upstream:
    """Return the upstream, its URL as `Origin.text` has it; raises FieldInvalid, BranchInvalid."""
    age = DEFAULT_MAX_AGE if max_age is None else max_age
    check_size(MAX_AGE, age.total_seconds())
    return Upstream(checked_origin(url).text, check_branch(branch, "source.upstream.branch"), age)


def with_origins(
    source: Source, *, upstream: Upstream | None, submodules: bool, origin: str
) -> Source:
    """Return a source that asks for an upstream or for submodules as well; raises FieldInvalid."""
    if upstream is not None and source.changes is not None:
        raise FieldInvalid(
            "changes",
            "belong to the client's commit, and an upstream's tip is wanted",
            remedy="Leave the changes at home, or launch the local commit.",
        )
    named = checked_origin(origin).text if origin else ""
    return replace(source, upstream=upstream, submodules=submodules, origin=named)


class OriginFault(StrEnum):
    """Why an origin's tip could not be had."""

    TIMEOUT = "origin_timeout"
    UNREACHABLE = "origin_unreachable"
    DENIED = "origin_denied"
    BRANCH_MISSING = "origin_branch_missing"
    UNAUTHORIZED = "origin_unauthorized"
    REDIRECTED = "origin_redirected"
    MALFORMED = "origin_malformed"
    COMMIT_MISSING = "origin_commit_missing"


class OriginFailed(Exception):
    """An origin did not give what was asked of it; `detail` is for the log and names no secret."""

    def __init__(self, fault: OriginFault, detail: str) -> None:
        super().__init__(f"{fault}: {detail}")
        self.fault = fault
        self.detail = detail
