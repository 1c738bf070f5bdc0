"""The options of `fairlead cp`."""

from __future__ import annotations

import argparse

from fairlead_sdk.cli.launch_options import add_host_option

CP = """Copy a file or a directory into a sandbox, or out of it.

One of SRC and DST is LAUNCH:PATH, with a launch's id, its beginning, or a sandbox
sbx_…; PATH is relative to the workspace. A directory comes with all that is in it.
Into a directory that is there SRC goes under its own name, and with SRC/. what is in
it; otherwise DST is its name. What was not there appears whole or not at all.

Of what comes out of a sandbox, .git and every other git directory is left out: git runs
programs that such a directory names. A single file can be copied from one by its name."""


def add_cp_options(parser: argparse.ArgumentParser) -> None:
    """Add them to the verb's parser."""
    parser.add_argument("source", metavar="SRC", help="What to copy.")
    parser.add_argument("target", metavar="DST", help="Where to.")
    parser.add_argument(
        "--with-git",
        action="store_true",
        help="Copy a repository out with its commits, branches and tags, without its configuration"
        " and hooks; DST is a new directory.",
    )
    add_host_option(parser)


def copy(chosen: argparse.Namespace, command: list[str]) -> int:
    """Run the verb; leaves with 2 where the usage is wrong."""
    source, target = _parted(chosen.source), _parted(chosen.target)
    if (source is None) == (target is None):
        chosen.parser.error("one of SRC and DST is LAUNCH:PATH, and the other one is here")
    if chosen.with_git and chosen.host:
        chosen.parser.error("--with-git is for a mesh, not for --host")
    from fairlead_sdk.cli.copying import Copy, copy

    name, remote = source or target or ("", "")
    here = chosen.source if source is None else chosen.target
    if not here:
        chosen.parser.error("the path here is empty")
    if chosen.with_git and source is None:
        chosen.parser.error("--with-git is for copies out of a sandbox")
    order = Copy(
        name=name,
        remote=remote,
        local=here,
        uploads=source is None,
        with_git=chosen.with_git,
        host=chosen.host or "",
    )
    return copy(order, is_json=chosen.output == "json")


def _parted(text: str) -> tuple[str, str] | None:
    """Split LAUNCH:PATH; `None` for a path here, as scp(1) tells them apart."""
    name, colon, path = text.partition(":")
    return (name, path) if colon and name and "/" not in name else None
