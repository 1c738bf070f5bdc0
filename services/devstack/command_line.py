"""The verbs of `python -m devstack`: a whole stack on one machine, without Docker."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from devstack.demo import demo
from devstack.doctor import doctor
from devstack.errors import INTERRUPTED, READER_GONE, UNAVAILABLE, StackError
from devstack.rooms import DEFAULT_PORTS, DEMO_PORTS, Planner, plan_rooms
from devstack.state import default_state
from devstack.up import down, status, up, up_detached


def main(
    argv: Sequence[str] | None = None,
    *,
    planned: Callable[[int], Planner] = plan_rooms,
    module: str = "devstack",
) -> int:
    """Run one subcommand and return the exit status; `planned` makes the plan of rooms from a first
    port.
    """
    arguments = _parser().parse_args(argv)
    path = default_state()
    try:
        match arguments.verb:
            case "up" if arguments.detach:
                command = (sys.executable, "-m", module, "up")
                return up_detached(path=path, command=command, as_json=arguments.output == "json")
            case "up":
                return up(path=path, planner=planned(DEFAULT_PORTS))
            case "down":
                return down(path=path, as_json=arguments.output == "json")
            case "status":
                return status(path=path, as_json=arguments.output == "json")
            case "demo":
                return demo(
                    repository=arguments.repo,
                    command=arguments.cmd,
                    planner=planned(DEMO_PORTS),
                )
            case _:
                return doctor(as_json=arguments.output == "json")
    except StackError as error:
        sys.stderr.write(error.text() + "\n")
        if getattr(arguments, "output", "") == "json":
            problem = {
                "type": "urn:fairlead:problem:stack_failed",
                "title": "StackError",
                "detail": error.message,
                "reason": "stack_failed",
                "remedy": " ".join(error.remedies),
            }
            sys.stdout.write(json.dumps(problem) + "\n")
        return UNAVAILABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # What waits in the buffer would be tried once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m devstack", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    start = verbs.add_parser("up", help="run a stack until Ctrl-C")
    start.add_argument("--detach", action="store_true", help="return when it is ready")
    stop = verbs.add_parser("down", help="stop the stack")
    shown = verbs.add_parser("demo", help="start a stack, show a launch twice, stop")
    shown.add_argument("--repo", type=Path, help="the repository to launch (this checkout)")
    shown.add_argument("--cmd", help="the shell command to run in it")
    status_verb = verbs.add_parser("status", help="say what runs")
    doctor_verb = verbs.add_parser("doctor", help="say what this machine can do")
    for verb in (start, stop, status_verb, doctor_verb):
        verb.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser
