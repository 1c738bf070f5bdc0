"""The verbs below `fairlead workspace` and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable

_ID = "Id of a workspace, its beginning, or its name."
_CREATE = """Make a workspace of the repository here, and print its id.

Uncommitted and untracked files are included. A branch that is named is claimed: no
other workspace of the project may claim it."""
_FORK = """Copy a workspace, and print the copy's id.

Commit, branches and uncommitted changes are the same."""
_RM = """Give workspaces back.

Uncommitted changes and commits that are nowhere else refuse it, unless --force."""

Run = Callable[[argparse.Namespace, list[str]], int]
AddVerb = Callable[[str, Run, str, str], argparse.ArgumentParser]


def add_workspace_verbs(
    add: AddVerb, *, lease: Callable[[str], float], name: Callable[[str], str]
) -> None:
    """Add the verbs with `add`; `lease` reads a number of seconds, `name` what is not empty."""
    create = add("create", _create, _CREATE, "[PATH]")
    create.add_argument(
        "path", metavar="PATH", nargs="?", default=".", help="A directory in a git repository."
    )
    _naming(create, name)
    create.add_argument(
        "--from",
        dest="from_",
        metavar="WHERE",
        choices=("trunk",),
        default="",
        help="trunk: the upstream's tip, not the local commit.",
    )
    create.add_argument("--clean", action="store_true", help="Leave uncommitted changes at home.")
    create.add_argument("--submodules", action="store_true", help="Check submodules out too.")
    listing = add("ls", _ls, "List workspaces.", "")
    show = add("show", _show, "Show one workspace, with the number of changed files.", "WORKSPACE")
    show.add_argument("workspace", metavar="WORKSPACE", help=_ID)
    fork = add("fork", _fork, _FORK, "WORKSPACE")
    fork.add_argument("workspace", metavar="WORKSPACE", help=_ID)
    _naming(fork, name)
    rename = add("rename", _rename, "Give a workspace another name.", "WORKSPACE NAME")
    rename.add_argument("workspace", metavar="WORKSPACE", help=_ID)
    rename.add_argument("name", metavar="NAME", help='Its name from now on; "" for none.')
    renew = add("renew", _renew, "Hold a workspace for longer.", "WORKSPACE")
    renew.add_argument("workspace", metavar="WORKSPACE", help=_ID)
    remove = add("rm", _rm, _RM, "[WORKSPACE...]")
    remove.add_argument("workspaces", metavar="WORKSPACE", nargs="*", help=_ID)
    remove.add_argument("--all", action="store_true", help="All but those of launches.")
    remove.add_argument(
        "--force",
        action="store_true",
        help="Also when work is lost, and from a launch that works in it.",
    )
    for parser in (listing, show, renew, remove):
        parser.add_argument(
            "--host",
            metavar="ADDRESS",
            type=name,
            help="ssh://user@host[:port]/directory: those there, without a mesh.",
        )
    for parser in (create, fork, renew):
        parser.add_argument(
            "--lease", metavar="SECONDS", type=lease, help="How long it is held; else 30 minutes."
        )


def _naming(parser: argparse.ArgumentParser, name: Callable[[str], str]) -> None:
    parser.add_argument(
        "--name", metavar="NAME", type=name, help="Its name; unique in the project."
    )
    parser.add_argument(
        "--branch", metavar="NAME", type=name, help="Branch of its own, which is claimed."
    )


def _is_json(chosen: argparse.Namespace) -> bool:
    return bool(chosen.output == "json")


def _create(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.workspace import create
    from fairlead_sdk.workspaces import WorkspaceRequest

    request = WorkspaceRequest(
        name=chosen.name or "",
        branch=chosen.branch or "",
        from_=chosen.from_,
        submodules=chosen.submodules,
        lease=chosen.lease,
    )
    return create(chosen.path, request, clean=chosen.clean, is_json=_is_json(chosen))


def _ls(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.workspace import ls

    return ls(host=chosen.host or "", is_json=_is_json(chosen))


def _show(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.workspace import show

    return show(chosen.workspace, host=chosen.host or "", is_json=_is_json(chosen))


def _fork(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.workspace import fork

    return fork(
        chosen.workspace,
        name=chosen.name or "",
        branch=chosen.branch or "",
        lease=chosen.lease,
        is_json=_is_json(chosen),
    )


def _rename(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.workspace import rename

    return rename(chosen.workspace, chosen.name, is_json=_is_json(chosen))


def _renew(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.workspace import renew

    return renew(
        chosen.workspace, lease=chosen.lease, host=chosen.host or "", is_json=_is_json(chosen)
    )


def _rm(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.workspace import rm

    if bool(chosen.workspaces) == chosen.all:
        chosen.parser.error("name workspaces, or --all")
    return rm(
        chosen.workspaces if not chosen.all else None,
        force=chosen.force,
        host=chosen.host or "",
        is_json=_is_json(chosen),
    )
