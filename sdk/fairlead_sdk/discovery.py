"""Find the mesh that a client on this machine talks to, and keep the user's named contexts.

In this order: `FAIRLEAD_URL`, `FAIRLEAD_CONTEXT` (the option `--context`), `FAIRLEAD_STATE`, a live
`.fairlead/` in this directory or above it, the context that `fairlead context use` chose, the only
context that is live. With several live and none chosen nothing is guessed. A stack that is merely
found must belong to this user or to root: the repository is sent to whoever is trusted here, and
anybody can put a `.fairlead` into `/tmp`.

A context is a file `$XDG_STATE_HOME/fairlead/contexts/NAME.json` with either the state directory of
a local stack (`fairlead up` writes it) or the address and key of a remote mesh. The file `context`
beside that directory holds the name of the chosen one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead_sdk import json_form as form
from fairlead_sdk.errors import FailedPrecondition, InvalidArgument, MeshUnavailable

_CONTEXT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Mesh:
    """Where the front door is, with which key, and what named it.

    `notice` is a sentence for the user where the choice is not obvious from the command line, the
    environment or the directory; otherwise it is empty.
    """

    url: str
    api_key: str
    found_by: str
    notice: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """A named mesh: a local stack by its state directory, or a remote one by its address."""

    name: str
    url: str
    """Address of the front door; empty for a local stack that does not run."""
    api_key: str
    state: str
    """State directory of a local stack; empty for a remote mesh."""
    is_chosen: bool

    @property
    def is_live(self) -> bool:
        """Whether a client may try it: its stack runs, or it is remote."""
        return bool(self.url)


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
    """Find the mesh.

    Raises `MeshUnavailable` with the reason `mesh_not_found`, `mesh_ambiguous` (several stacks run
    and none was chosen), `context_unknown` or `context_stopped`.
    """
    variables = os.environ if environment is None else environment
    key = variables.get("FAIRLEAD_API_KEY", "").strip()
    url = variables.get("FAIRLEAD_URL", "").strip().rstrip("/")
    if url:
        _check_url(url, "FAIRLEAD_URL")
        return Mesh(url, key or _key_of_local(url, variables, directory), "FAIRLEAD_URL")
    wanted = variables.get("FAIRLEAD_CONTEXT", "").strip()
    if wanted:
        context = find_context(wanted, environment=variables)
        return _mesh_of(context, key, f"context {wanted}")
    named = variables.get("FAIRLEAD_STATE", "").strip()
    if named:
        stack = _live_stack(Path(named))
        if stack is None:
            raise _nothing(f"No stack runs out of {named}, which FAIRLEAD_STATE names.")
        return Mesh(stack.url, key or stack.api_key(), f"FAIRLEAD_STATE ({named})")
    for place in _own_places(directory):
        stack = _own_stack(place)
        if stack is not None:
            return Mesh(stack.url, key or stack.api_key(), str(place))
    return _by_context(variables, key)


def _by_context(variables: Mapping[str, str], key: str) -> Mesh:
    """Use the chosen context, else the only live one."""
    contexts = list_contexts(environment=variables)
    chosen = next((context for context in contexts if context.is_chosen), None)
    if chosen is not None:
        return _mesh_of(
            chosen,
            key,
            f"context {chosen.name}",
            f"using {chosen.url}, the context {chosen.name} (fairlead context use).",
        )
    live = [context for context in contexts if context.is_live]
    if not live:
        raise _nothing("No mesh was found on this machine, and FAIRLEAD_URL is not set.")
    if len(live) > 1:
        listed = ", ".join(f"{context.name} ({context.url})" for context in live)
        raise MeshUnavailable(
            f"{len(live)} meshes could be meant: {listed}.",
            reason="mesh_ambiguous",
            remedy="Name one with --context NAME, or choose one: fairlead context use NAME",
        )
    only = live[0]
    notice = f"using {only.url}, the context {only.name}, the only one that runs."
    return _mesh_of(only, key, f"context {only.name}", notice)


def _mesh_of(context: Context, key: str, found_by: str, notice: str = "") -> Mesh:
    if not context.is_live:
        raise MeshUnavailable(
            f"The stack of the context {context.name} does not run ({context.state}).",
            reason="context_stopped",
            remedy=f"Start it with `fairlead --context {context.name} up`, or choose another one: "
            "fairlead context ls",
        )
    return Mesh(context.url, key or context.api_key, found_by, notice)


def _check_url(url: str, source: str) -> None:
    if not url.startswith(("http://", "https://")) or len(url.split("//", 1)[1]) == 0:
        raise MeshUnavailable(
            f"{source} is not an HTTP address: {url}.",
            reason="url_invalid",
            remedy="Set it to something like http://127.0.0.1:7300.",
        )


def _nothing(sentence: str) -> MeshUnavailable:
    return MeshUnavailable(
        sentence,
        reason="mesh_not_found",
        remedy="Start one with `fairlead up` (or `make up`), or set FAIRLEAD_URL to one.",
    )


def _own_places(directory: Path | None) -> Iterator[Path]:
    here = Path.cwd() if directory is None else directory
    for ancestor in (here, *here.parents):
        yield ancestor / ".fairlead"


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
    """Return the key of a stack on this machine that listens at `url`, so that the URL suffices."""
    named = variables.get("FAIRLEAD_STATE", "").strip()
    stacks = (
        [_live_stack(Path(named))]
        if named
        else [_own_stack(place) for place in _own_places(directory)]
    )
    keys = (stack.api_key() for stack in stacks if stack is not None and stack.url == url)
    found = next(keys, "")
    if found or named:
        return found
    contexts = list_contexts(environment=variables)
    return next((context.api_key for context in contexts if context.url == url), "")


def state_home(environment: Mapping[str, str] | None = None) -> Path:
    """Return `$XDG_STATE_HOME/fairlead`."""
    variables = os.environ if environment is None else environment
    home = variables.get("XDG_STATE_HOME", "").strip()
    return (Path(home) if home else Path.home() / ".local" / "state") / "fairlead"


def list_contexts(*, environment: Mapping[str, str] | None = None) -> list[Context]:
    """List the contexts by name; files that cannot be read are left out."""
    home = state_home(environment)
    try:
        chosen = (home / "context").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        chosen = ""
    found = []
    for file in sorted((home / "contexts").glob("*.json")):
        try:
            document = form.parse_object(file.read_bytes())
        except (OSError, ValueError):
            continue
        name, state = file.stem, form.text(document, "state")
        url, key = form.text(document, "url"), form.text(document, "api_key")
        if state:
            stack = _own_stack(Path(state))
            url, key = (stack.url, stack.api_key()) if stack is not None else ("", "")
        if _CONTEXT_NAME.fullmatch(name) and (url or state):
            found.append(Context(name, url, key, state, name == chosen))
    return found


def find_context(name: str, *, environment: Mapping[str, str] | None = None) -> Context:
    """Return the context `name`; raises `MeshUnavailable` (`context_unknown`)."""
    contexts = list_contexts(environment=environment)
    for context in contexts:
        if context.name == name:
            return context
    known = ", ".join(context.name for context in contexts) or "none"
    raise MeshUnavailable(
        f"There is no context {name!r}; known: {known}.",
        reason="context_unknown",
        remedy="List them: fairlead context ls",
    )


def choose_context(name: str, *, environment: Mapping[str, str] | None = None) -> Context:
    """Make `name` the context for commands that name none; raises as `find_context`."""
    context = find_context(name, environment=environment)
    _write(state_home(environment) / "context", f"{name}\n")
    return context


def add_context(
    name: str, *, url: str, api_key: str, environment: Mapping[str, str] | None = None
) -> None:
    """Keep a remote mesh under `name`.

    `name` has 1 to 63 letters, digits, `.`, `_` and `-`. Raises `InvalidArgument`
    (`context_invalid`), `FailedPrecondition` (`context_exists`) and `MeshUnavailable`
    (`url_invalid`).
    """
    if not _CONTEXT_NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} cannot name a context.",
            reason="context_invalid",
            remedy="Use 1 to 63 letters, digits, dots, underscores and hyphens.",
        )
    _check_url(url, "The address")
    document = {"url": url.rstrip("/"), "api_key": api_key}
    if not _claim(_context_file(name, environment), document):
        raise FailedPrecondition(
            f"The context {name} exists already.",
            reason="context_exists",
            remedy=f"Remove it first: fairlead context rm {name}",
        )


def remove_context(name: str, *, environment: Mapping[str, str] | None = None) -> None:
    """Forget a context, which stops nothing; raises as `find_context`."""
    context = find_context(name, environment=environment)
    _context_file(name, environment).unlink(missing_ok=True)
    if context.is_chosen:
        (state_home(environment) / "context").unlink(missing_ok=True)


def register_stack(state: Path) -> str:
    """Keep the local stack of `state` as a context and return its name.

    A stack that is known keeps its name. Contexts whose state directory is gone are removed.
    Raises `OSError` where the files cannot be written.
    """
    for context in list_contexts():
        if context.state and not Path(context.state).is_dir():
            _context_file(context.name).unlink(missing_ok=True)
        elif context.state and Path(context.state) == state:
            return context.name
    folder = state.parent.name if state.name == ".fairlead" else state.name
    base = re.sub(r"[^A-Za-z0-9._-]+|^[^A-Za-z0-9]+", "-", folder).strip("-.")[:50] or "stack"
    number = 1
    while not _claim(
        _context_file(name := base if number == 1 else f"{base}-{number}"), {"state": str(state)}
    ):
        number += 1
    return name


def _context_file(name: str, environment: Mapping[str, str] | None = None) -> Path:
    return state_home(environment) / "contexts" / f"{name}.json"


def _claim(file: Path, document: Mapping[str, object]) -> bool:
    """Create `file`, whole; False if it exists."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    _write(draft, json.dumps(document) + "\n")
    try:
        os.link(draft, file)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def _write(file: Path, content: str) -> None:
    """Write a file of mode 0600, all at once."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}.draft")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(content)
    draft.replace(file)
