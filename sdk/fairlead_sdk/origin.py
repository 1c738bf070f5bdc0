"""Where the repository's `origin` is and what its trunk is called, as a host needs to hear it.

Credentials that stand in the address stay here: the host has each tenant's own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from fairlead_sdk.errors import InvalidArgument, RepositoryError
from fairlead_sdk.git import finish_git, start_git
from fairlead_sdk.json_form import JsonObject

TRUNK = "trunk"

_REMOTE = "refs/remotes/origin/"
_SCP = re.compile(r"(?:([^@/:\s]+)@)?(\[[0-9A-Fa-f:.]+\]|[^@/:\[\]\s]{2,}):(?!//|:)(.+)")


def origin_fields(
    directory: str | os.PathLike[str], *, from_: str = "", submodules: bool = False
) -> JsonObject:
    """Give what a source says of the repository around `directory` besides its commit.

    With `from_` = "trunk" that is `upstream`, the tip of the origin's default branch, and its name
    for the workspace's branch.
    With `submodules` they are wanted, and `origin` is where their relative URLs start. Raises
    `RepositoryError` with the reason `origin_missing`, `origin_unsupported` or `trunk_unknown`, and
    `InvalidArgument` with `from_unknown`.
    """
    if from_ not in ("", TRUNK):
        raise InvalidArgument(
            f"There is nothing to launch from that is called {from_!r}.",
            reason="from_unknown",
            remedy="Launch from `trunk`, or leave it out for the local commit.",
        )
    place = Path(directory)
    fields: JsonObject = {}
    if from_:
        url, branch = _origin(place), _trunk(place)
        fields["upstream"] = {"url": url, "branch": branch}
        fields["branch"] = branch
    if submodules:
        fields["submodules"] = True
        try:
            fields["origin"] = _origin(place)
        except RepositoryError:
            fields["origin"] = ""  # submodules whose URLs are whole need none
    return fields


def _origin(place: Path) -> str:
    answer = finish_git(start_git("remote", "get-url", "origin", directory=place))
    url = os.fsdecode(answer.stdout).rstrip("\n")
    if answer.status != 0 or not url:
        raise RepositoryError(
            "The repository has no remote that is called origin.",
            reason="origin_missing",
            remedy="git remote add origin URL, or launch the local commit.",
        )
    return host_address(url)


def host_address(url: str) -> str:
    """Give the address under which a host reaches an origin, without credentials; raises
    `RepositoryError` with the reason `origin_unsupported`.
    """
    scp = _SCP.fullmatch(url)
    if scp is not None:
        user, host, path = scp.groups()
        start = path if path.startswith("/") else f"/~/{path}"
        return f"ssh://{user}@{host}{start}" if user else f"ssh://{host}{start}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _unsupported() from None
    scheme = parts.scheme.lower()
    if scheme not in ("https", "ssh") or not parts.hostname:
        raise _unsupported()
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    user = f"{parts.username}@" if parts.username and scheme == "ssh" else ""
    return f"{scheme}://{user}{host}{f':{port}' if port else ''}{parts.path}"


def _unsupported() -> RepositoryError:
    return RepositoryError(
        "The origin of the repository is none that a host can fetch from.",
        reason="origin_unsupported",
        remedy="git remote set-url origin with an https:// or ssh:// address, or launch the"
        " local commit.",
    )


def _trunk(place: Path) -> str:
    """Give the default branch of the origin as this repository knows it."""
    names = [f"{_REMOTE}{name}" for name in ("HEAD", "main", "master")]
    listing = ("for-each-ref", "--format=%(refname)%00%(symref)", *names)
    answer = finish_git(start_git(*listing, directory=place))
    lines = os.fsdecode(answer.stdout).split("\n")
    found = dict(line.partition("\0")[::2] for line in lines)
    head = found.get(names[0], "")
    if head.startswith(_REMOTE):
        return head.removeprefix(_REMOTE)
    for name in names[1:]:
        if name in found:
            return name.removeprefix(_REMOTE)
    raise RepositoryError(
        "The repository does not know the default branch of its origin.",
        reason="trunk_unknown",
        remedy="git remote set-head origin --auto",
    )
