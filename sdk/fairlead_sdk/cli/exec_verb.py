"""The options of `fairlead exec`."""

from __future__ import annotations

import argparse

from fairlead_sdk.cli.launch_options import add_host_option, add_no_stdin_option, seconds

EXEC = """Run one more command in a held launch, or in a sandbox.

What is piped in is its standard input; the exit status is the command's. Ctrl-C goes
to the command, a second one leaves it. With --detach it goes on by itself, and its
id is printed: `fairlead logs exe_…` shows its output, `fairlead kill exe_…` ends it."""


def add_exec_options(parser: argparse.ArgumentParser) -> None:
    """Add them to the verb's parser."""
    parser.add_argument(
        "launch",
        metavar="LAUNCH",
        help="Id of a launch or its beginning, or of a sandbox sbx_….",
    )
    parser.add_argument(
        "-C", "--directory", metavar="DIR", default="", help="Directory in the workspace."
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, help="End the command after this long."
    )
    parser.add_argument(
        "-d",
        "--detach",
        action="store_true",
        help="Start it without input, print its id and leave.",
    )
    add_no_stdin_option(parser)
    add_host_option(parser)


def execute(chosen: argparse.Namespace, command: list[str]) -> int:
    """Run the verb; leaves with 2 where the usage is wrong."""
    if not command or not command[0]:
        chosen.parser.error("a command must follow after --")
    if chosen.host and chosen.detach:
        chosen.parser.error("--detach is for a mesh, not for --host")
    from fairlead_sdk.cli.execution import ExecChoices, execute

    choices = ExecChoices(
        target=chosen.launch,
        command=command,
        directory=chosen.directory,
        timeout=chosen.timeout,
        detach=chosen.detach,
        no_stdin=chosen.no_stdin,
        host=chosen.host or "",
    )
    return execute(choices, is_json=chosen.output == "json")
