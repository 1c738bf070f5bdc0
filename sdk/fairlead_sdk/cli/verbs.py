"""The verbs of `fairlead` and their options. What a verb does is imported when it is used.

The standard library parses: importing a richer parser costs more than a warm launch.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from fairlead_sdk.cli.cp_verb import CP, add_cp_options, copy
from fairlead_sdk.cli.exec_verb import EXEC, add_exec_options, execute
from fairlead_sdk.cli.forward_verb import (
    FORWARD,
    FORWARD_USAGE,
    add_forward_options,
    run_forward,
)
from fairlead_sdk.cli.launch_options import (
    add_host_option,
    add_launch_options,
    choices_of,
    lease,
    name,
)
from fairlead_sdk.cli.shell_verb import SHELL, add_shell_options, open_shell
from fairlead_sdk.cli.socks_verb import SOCKS, add_socks_options, run_socks

if TYPE_CHECKING:
    from fairlead_sdk.agent_client import Takeover
    from fairlead_sdk.cli.launch import LaunchChoices

USAGE = 2
LAUNCH_STATES = ("requested", "provisioned", "running", "exited", "failed", "cancelled")
_COMMAND = "-- COMMAND..."
_ABOUT = "A git workspace, a sandbox to run in and a tunnel to reach it, in one round trip."
_LAUNCH_ID = "Id of a launch, or its beginning."
_LAUNCH_OR_EXECUTION = "Id of a launch or its beginning, or of an execution exe_…."
_LAUNCH = """Run a command on the repository here.

Uncommitted and untracked files are included. What is piped in is its standard input;
the exit status is the command's. Ctrl-C goes to the command, a second one cancels.
Without a command, workspace and sandbox are held for 30 minutes, for `exec` and
`forward`, and the launch's id is printed."""
_LOGS = """Replay the output of a launch's command, or of an execution.

It stops where nothing more comes for now, unless --follow."""
_KILL = """Cancel launches and release what they hold; end executions.

An execution gets SIGTERM, and 2 seconds later SIGKILL."""
_RENEW = """Hold what launches have for longer: their workspaces and sandboxes.

`fairlead launch renew LAUNCH` is the same."""
_WORKSPACE = """Make, copy, hold and give back workspaces.

A workspace is a checked-out git tree on a host, with a lease of 30 minutes unless
another is asked for. It is named by its id, the beginning of it, or its name."""
_SANDBOX = """Make, look at, hold and give back sandboxes.

A sandbox is an isolated place to execute in, with a lease of its own, which needs no
launch. It is named by its id, or the beginning of it; `fairlead exec`, `shell` and `cp`
work in it."""
_SESSION = """Look at sessions: what `forward` and `socks` go through."""
_CONTEXT = """Choose among several meshes.

`fairlead up` keeps each stack of this machine as a context; `context add` keeps a
remote mesh. --context NAME or FAIRLEAD_CONTEXT names one for a single command."""
_AGENT = """Show the background process that makes launches fast.

It starts with the first launch, keeps a connection to the front door warm, and ends
when nobody needs it for five minutes. FAIRLEAD_AGENT=0 does without."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Names an option's value once, `-o, --output FORMAT`, in every version of Python."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {action.metavar}"

    def add_argument(self, action: argparse.Action) -> None:
        """Leave room for verbs, whose indent argparse forgets."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment


class _Parser(argparse.ArgumentParser):
    """Says where a command belongs when it was put elsewhere."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments") and _COMMAND in (self.usage or ""):
            message += "; the command goes after --"
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"fairlead: {message}\n")


Run = Callable[[argparse.Namespace, list[str]], int]


def _verb(
    verbs: argparse._SubParsersAction[_Parser],
    name: str,
    run: Run,
    about: str,
    usage: str,
    group: str = "",
) -> _Parser:
    parser = verbs.add_parser(
        name,
        help=about.splitlines()[0],
        description=about,
        usage=f"fairlead {group}{name} [OPTIONS]{usage and ' '}{usage}",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def make_parser(verb: str = "") -> argparse.ArgumentParser:
    """Make the parser of the whole command line; what is below a verb, only when it is `verb`."""
    parser = _Parser(
        prog="fairlead",
        description=_ABOUT,
        usage="fairlead [OPTIONS] VERB ...",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="Print the version and leave.")
    # Read and removed before anything is parsed (see `app`): it is valid behind the verb as well.
    parser.add_argument("--context", metavar="NAME", help="Use this mesh: fairlead context ls")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=_Parser)
    _verb(verbs, "up", _up, "Start a stack on this machine; it stays until `fairlead down`.", "")
    _verb(verbs, "down", _down, "Stop the stack on this machine.", "")
    _verb(verbs, "doctor", _doctor, "Show what works here and what to do about the rest.", "")
    add_launch_options(_verb(verbs, "launch", _launch, _LAUNCH, "[PATH] [-- COMMAND...]"))
    add_exec_options(_verb(verbs, "exec", execute, EXEC, "LAUNCH -- COMMAND..."))
    add_shell_options(_verb(verbs, "shell", open_shell, SHELL, "[LAUNCH] [-- COMMAND...]"))
    add_cp_options(_verb(verbs, "cp", copy, CP, "SRC DST"))
    ps = _verb(verbs, "ps", _ps, "List launches that run or hold something.", "")
    ps.add_argument("-a", "--all", action="store_true", help="Also what ended.")
    ps.add_argument(
        "--state",
        dest="states",
        metavar="STATE",
        choices=LAUNCH_STATES,
        action="append",
        default=[],
        help=f"Only these: {', '.join(LAUNCH_STATES)}; again for more.",
    )
    ps.add_argument("--project", metavar="ID", default="", help="Only this project's.")
    ps.add_argument(
        "--limit", metavar="N", type=_count, default=100, help="Most to list; else 100."
    )
    add_host_option(ps)
    logs = _verb(verbs, "logs", _logs, _LOGS, "LAUNCH")
    logs.add_argument("launch", metavar="LAUNCH", help=_LAUNCH_OR_EXECUTION)
    logs.add_argument("-f", "--follow", action="store_true", help="Stay until it ends.")
    logs.add_argument("--cursor", metavar="CURSOR", default="", help="Go on after this position.")
    trace = _verb(verbs, "trace", _trace, "Draw where a launch's time went.", "LAUNCH")
    trace.add_argument("launch", metavar="LAUNCH", help=_LAUNCH_ID)
    kill = _verb(verbs, "kill", _kill, _KILL, "[LAUNCH...]")
    kill.add_argument("launches", metavar="LAUNCH", nargs="*", help=_LAUNCH_OR_EXECUTION)
    kill.add_argument("--all", action="store_true", help="All that run or hold something.")
    add_host_option(kill)
    renew = _verb(verbs, "renew", _renew, _RENEW, "LAUNCH...")
    renew.add_argument("launches", metavar="LAUNCH", nargs="+", help=_LAUNCH_ID)
    renew.add_argument("--lease", metavar="SECONDS", type=lease, help="From now; else 30 minutes.")
    add_forward_options(_verb(verbs, "forward", run_forward, FORWARD, FORWARD_USAGE))
    add_socks_options(_verb(verbs, "socks", run_socks, SOCKS, "[LAUNCH]"))
    agent = _verb(verbs, "agent", _agent, _AGENT, "")
    agent.add_argument("--stop", action="store_true", help="End it.")
    for parsed in verbs.choices.values():
        _output_option(parsed)
    for group, about, add_verbs in (
        ("workspace", _WORKSPACE, _workspace_verbs),
        ("sandbox", _SANDBOX, _sandbox_verbs),
        ("session", _SESSION, _session_verbs),
        ("context", _CONTEXT, _context_verbs),
    ):
        _group_verbs(verbs, group, about, add_verbs, with_verbs=verb == group)
    return parser


def _output_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        metavar="FORMAT",
        choices=("text", "json"),
        default="text",
        help="How data are written to standard output: text or json.",
    )


AddVerb = Callable[[str, Run, str, str], argparse.ArgumentParser]


def _group_verbs(
    verbs: argparse._SubParsersAction[_Parser],
    group: str,
    about: str,
    add_verbs: Callable[[AddVerb], None],
    *,
    with_verbs: bool,
) -> None:
    """Add a verb that has others below it; those only `with_verbs`."""
    if not with_verbs:
        verbs.add_parser(group, help=about.splitlines()[0])
        return
    parser = _verb(verbs, group, _group, about, "VERB ...")
    below = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=_Parser)
    add_verbs(lambda name, run, about, usage: _verb(below, name, run, about, usage, f"{group} "))
    for parsed in below.choices.values():
        _output_option(parsed)


def _workspace_verbs(add: AddVerb) -> None:
    from fairlead_sdk.cli.workspace_verbs import add_workspace_verbs

    add_workspace_verbs(add, lease=lease, name=name)


def _sandbox_verbs(add: AddVerb) -> None:
    from fairlead_sdk.cli.sandbox_verbs import add_sandbox_verbs

    add_sandbox_verbs(add)


def _session_verbs(add: AddVerb) -> None:
    from fairlead_sdk.cli.session_verbs import add_session_verbs

    add_session_verbs(add)


def _context_verbs(add: AddVerb) -> None:
    from fairlead_sdk.cli.context_verbs import add_context_verbs

    add_context_verbs(add)


def run_verb(arguments: Sequence[str], command: list[str], takeover: Takeover | None = None) -> int:
    """Parse and run; gives the exit status, or leaves with 2 where the usage is wrong.

    `takeover` is a launch of this command line that an agent began.
    """
    parser = make_parser(arguments[0] if arguments else "")
    chosen, unknown = parser.parse_known_args(arguments)
    if unknown:
        # argparse would show the usage of the whole command line for what a verb does not know.
        getattr(chosen, "parser", parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if chosen.version:
        from importlib.metadata import version

        sys.stdout.write(f"fairlead {version('fairlead-sdk')}\n")
        return 0
    if "run" not in chosen:
        parser.print_help(sys.stderr)
        return USAGE
    run: Run = chosen.run
    chosen.takeover = takeover
    return run(chosen, command)


def _group(chosen: argparse.Namespace, command: list[str]) -> int:
    chosen.parser.print_help(sys.stderr)
    return USAGE


def _is_json(chosen: argparse.Namespace) -> bool:
    return bool(chosen.output == "json")


def _require_command(chosen: argparse.Namespace, command: list[str]) -> None:
    if not command or not command[0]:
        chosen.parser.error("a command must follow after --")


def _up(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.stack import stack

    return stack("up", "--detach", is_json=_is_json(chosen))


def _down(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.stack import stack

    return stack("down", is_json=_is_json(chosen))


def _doctor(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.stack import doctor

    return doctor(is_json=_is_json(chosen))


def read_launch(arguments: Sequence[str], command: list[str]) -> tuple[LaunchChoices, bool] | None:
    """Read the command line of a launch by a mesh: what was chosen, and whether data are JSON.

    `None` for anything else, also for what `run_verb` refuses.
    """
    parser = make_parser("launch")
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            chosen = parser.parse_args(arguments)
    except SystemExit:
        return None
    if getattr(chosen, "run", None) is not _launch or chosen.version or chosen.host:
        return None
    return None if command and not command[0] else (choices_of(chosen, command), _is_json(chosen))


def _launch(chosen: argparse.Namespace, command: list[str]) -> int:
    if command:
        _require_command(chosen, command)
    choices = choices_of(chosen, command)
    if choices.workspace and (
        chosen.path != "." or choices.branch or choices.from_ or choices.clean or choices.submodules
    ):
        chosen.parser.error("--workspace takes no PATH and nothing that makes a workspace")
    if chosen.host:
        from fairlead_sdk.cli.ssh_launch import ssh_launch

        if chosen.isolation or chosen.timing or choices.sandbox or choices.workspace:
            chosen.parser.error("a sandbox's options and --timing are for a mesh, not for --host")
        return ssh_launch(choices, host=chosen.host, is_json=_is_json(chosen))
    from fairlead_sdk.cli.launch import launch

    return launch(choices, is_json=_is_json(chosen), takeover=chosen.takeover)


def _agent(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.agent import agent

    return agent(stop=chosen.stop, is_json=_is_json(chosen))


def _ps(chosen: argparse.Namespace, command: list[str]) -> int:
    if chosen.host:
        from fairlead_sdk.cli.workspace import ls

        if chosen.states or chosen.project:
            chosen.parser.error("--state and --project are for a mesh, not for --host")
        return ls(host=chosen.host, is_json=_is_json(chosen))
    from fairlead_sdk.cli.listing import ps

    return ps(
        everything=chosen.all,
        states=chosen.states,
        project=chosen.project,
        limit=chosen.limit,
        is_json=_is_json(chosen),
    )


def _logs(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.listing import logs

    is_json = _is_json(chosen)
    return logs(chosen.launch, follow=chosen.follow, cursor=chosen.cursor, is_json=is_json)


def _trace(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.listing import trace

    return trace(chosen.launch, is_json=_is_json(chosen))


def _renew(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.listing import renew

    return renew(chosen.launches, lease=chosen.lease, is_json=_is_json(chosen))


def _kill(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.listing import kill

    if bool(chosen.launches) == chosen.all:
        chosen.parser.error("name launches, or --all")
    if chosen.host:
        from fairlead_sdk.cli.workspace import kill_on_host

        workspaces = None if chosen.all else chosen.launches
        return kill_on_host(workspaces, host=chosen.host, is_json=_is_json(chosen))
    return kill(chosen.launches, everything=chosen.all, is_json=_is_json(chosen))


def _count(text: str) -> int:
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= 100_000:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 100000")
