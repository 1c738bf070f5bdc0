"""Finding the mesh that a client on this machine talks to, without any setting where one runs here.

In this order: `FAIRLEAD_URL`, `FAIRLEAD_STATE`, a live `.fairlead/` in this directory or above it,
`$XDG_STATE_HOME/fairlead/current`. What is only come across must be this user's (or root's): the
repository goes to whoever is believed here, and anybody can put a `.fairlead` into `/tmp`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead_sdk import json_form as form
from fairlead_sdk.errors import MeshUnavailable


@dataclass(frozen=True, slots=True)
class Mesh:
    """Where the front door is, with which key, and what said so."""

    url: str
    api_key: str
    found_by: str


@dataclass(frozen=True, slots=True)
class _Stack:
    url: str
    api_key_file: str
    place: Path

    def api_key(self) -> str:
        if not self.api_key_file:
            return ""
        try:
            return (self.place / self.api_key_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return ""


def find_mesh(
    *, environment: Mapping[str, str] | None = None, directory: Path | None = None
) -> Mesh:
    """Find the mesh; `MeshUnavailable` with the reason `mesh_not_found` where there is none."""
    variables = os.environ if environment is None else environment
    key = variables.get("FAIRLEAD_API_KEY", "").strip()
    url = variables.get("FAIRLEAD_URL", "").strip().rstrip("/")
    if url:
        return Mesh(_checked(url), key or _key_of_local(url, variables, directory), "FAIRLEAD_URL")
    named = variables.get("FAIRLEAD_STATE", "").strip()
    if named:
        stack = _live_stack(Path(named))
        if stack is None:
            raise _nothing(f"No stack runs out of {named}, which FAIRLEAD_STATE names.")
        return Mesh(stack.url, key or stack.api_key(), f"FAIRLEAD_STATE ({named})")
    for place in _places(variables, directory):
        stack = _own_stack(place)
        if stack is not None:
            return Mesh(stack.url, key or stack.api_key(), str(place))
    raise _nothing("No mesh was found on this machine, and FAIRLEAD_URL is not set.")


def _checked(url: str) -> str:
    if not url.startswith(("http://", "https://")) or len(url.split("//", 1)[1]) == 0:
        raise MeshUnavailable(
            f"FAIRLEAD_URL is not an HTTP address: {url}.",
            reason="url_invalid",
            remedy="Set it to something like http://127.0.0.1:7300.",
        )
    return url


def _nothing(sentence: str) -> MeshUnavailable:
    return MeshUnavailable(
        sentence,
        reason="mesh_not_found",
        remedy="Start one with `fairlead up` (or `make up`), or set FAIRLEAD_URL to one.",
    )


def _places(variables: Mapping[str, str], directory: Path | None) -> Iterator[Path]:
    here = Path.cwd() if directory is None else directory
    for ancestor in (here, *here.parents):
        yield ancestor / ".fairlead"
    home = variables.get("XDG_STATE_HOME", "").strip()
    state = Path(home) if home else Path.home() / ".local" / "state"
    yield state / "fairlead" / "current"


def _own_stack(place: Path) -> _Stack | None:
    try:
        owner = (place / "stack.json").stat().st_uid
    except OSError:
        return None
    return _live_stack(place) if owner in (os.geteuid(), 0) else None


def _live_stack(place: Path) -> _Stack | None:
    try:
        document = form.parse_object((place / "stack.json").read_bytes())
    except (OSError, ValueError):
        return None
    pid = form.number(document, "pid")
    url = form.text(document, "url").rstrip("/")
    if not url or (pid > 0 and not _is_alive(pid)):
        return None
    return _Stack(url=url, api_key_file=form.text(document, "api_key_file"), place=place)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _key_of_local(url: str, variables: Mapping[str, str], directory: Path | None) -> str:
    """Give the key of a stack on this machine that listens at `url`, so that the URL suffices."""
    named = variables.get("FAIRLEAD_STATE", "").strip()
    stacks = (
        [_live_stack(Path(named))]
        if named
        else [_own_stack(place) for place in _places(variables, directory)]
    )
    return next((stack.api_key() for stack in stacks if stack is not None and stack.url == url), "")
