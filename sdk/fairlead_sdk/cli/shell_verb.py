"""The options of `fairlead shell`."""

from __future__ import annotations

import argparse
import os

SHELL = """Open a shell, or run a command, on a terminal in a sandbox.

Without LAUNCH it is the newest one of this directory's repository. The exit status
is the shell's. At the start of a line, ~. leaves (what runs goes on, and its id is
told: give it to come back), and ~? shows more. A lost connection is taken up again."""


def add_shell_options(parser: argparse.ArgumentParser) -> None:
    """Add them to the verb's parser."""
    parser.add_argument(
        "target",
        metavar="LAUNCH",
        nargs="?",
        default="",
        help="A launch or its beginning, a sandbox sbx_…, or a terminal exe_….",
    )
    parser.add_argument(
        "-C", "--directory", metavar="DIR", default="", help="Directory in the workspace."
    )
    parser.add_argument(
        "--take-over", action="store_true", help="Take the terminal from whoever has it."
    )


def open_shell(chosen: argparse.Namespace, command: list[str]) -> int:
    """Run the verb; leaves with 2 where the usage is wrong."""
    is_there = chosen.target.startswith("exe_")
    if command and not command[0]:
        chosen.parser.error("a command must follow after --")
    if is_there and (command or chosen.directory):
        chosen.parser.error("a terminal that is there runs its command already")
    if chosen.take_over and not is_there:
        chosen.parser.error("--take-over is for a terminal that is there, exe_…")
    if not os.isatty(0):
        chosen.parser.error("standard input is no terminal; `exec` takes what is piped in")
    from fairlead_sdk.cli.shell import ShellChoices, shell

    choices = ShellChoices(
        target=chosen.target,
        command=command,
        directory=chosen.directory,
        take_over=chosen.take_over,
    )
    return shell(choices, is_json=chosen.output == "json")
