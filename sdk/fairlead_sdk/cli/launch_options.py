"""The options of `fairlead launch` and of `fairlead sandbox create`, and how they are read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead_sdk.cli.launch import LaunchChoices
    from fairlead_sdk.sandbox_records import SandboxRequest

_LIMITS = (
    "memory_bytes",
    "processes",
    "open_files",
    "file_bytes",
    "cpu_milli",
    "disk_bytes",
    "wall_time",
    "output_bytes",
)
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_sandbox_options(parser: argparse.ArgumentParser) -> None:
    """Add what a sandbox may be asked to have."""
    parser.add_argument(
        "--isolation", metavar="TIER", type=name, help="Isolation to have; else the host's best."
    )
    parser.add_argument(
        "--profile", metavar="NAME", type=name, help="Profile of the sandbox; else `default`."
    )
    parser.add_argument(
        "--limit",
        dest="limits",
        metavar="NAME=N",
        type=_limit,
        action="append",
        default=[],
        help="A limit tighter than the profile's, such as memory_bytes=2G; again for more.",
    )
    add_network_options(parser, otherwise="the profile's")


def add_network_options(parser: argparse.ArgumentParser, *, otherwise: str) -> None:
    """Add what of the network a sandbox may be asked to reach."""
    parser.add_argument(
        "--network",
        metavar="MODE",
        choices=("none", "host", "egress"),
        default="",
        help=f"none, host or egress; else {otherwise}.",
    )
    parser.add_argument(
        "--allow",
        metavar="HOST",
        type=name,
        action="append",
        default=[],
        help="What egress lets through: NAME, *.NAME or an address, with :PORT; again for more.",
    )


def sandbox_request(chosen: argparse.Namespace) -> SandboxRequest | None:
    """Return what was chosen for a sandbox besides its isolation; `None` for nothing."""
    if not (chosen.profile or chosen.limits or chosen.network or chosen.allow):
        return None
    from fairlead_sdk.sandbox_records import SandboxRequest

    return SandboxRequest(
        profile=chosen.profile or "",
        limits=dict(chosen.limits),
        network=chosen.network,
        allow=tuple(chosen.allow),
    )


def _limit(text: str) -> tuple[str, float]:
    """Read `name=number`; sizes may end in K, M, G or T."""
    called, _, value = text.partition("=")
    if called not in _LIMITS:
        raise argparse.ArgumentTypeError(f"{called!r} is none of {', '.join(_LIMITS)}")
    unit = _UNITS.get(value[-1:], 1) if called.endswith("_bytes") else 1
    digits = value[:-1] if unit > 1 else value
    try:
        amount = float(digits) if called == "wall_time" else int(digits) * unit
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is no number") from None
    if not 0 < amount < 2**62:
        raise argparse.ArgumentTypeError(f"{value!r} is no limit")
    return called, amount


def add_launch_options(parser: argparse.ArgumentParser) -> None:
    """Add what `fairlead launch` takes."""
    parser.add_argument(
        "path", metavar="PATH", nargs="?", default=".", help="A directory in a git repository."
    )
    parser.add_argument(
        "--branch", metavar="NAME", type=name, help="Branch of the workspace; else the one here."
    )
    parser.add_argument(
        "--from",
        dest="from_",
        metavar="WHERE",
        choices=("trunk",),
        default="",
        help="trunk: the upstream's tip, not the local commit and changes.",
    )
    parser.add_argument("--clean", action="store_true", help="Leave uncommitted changes at home.")
    parser.add_argument("--submodules", action="store_true", help="Check submodules out too.")
    parser.add_argument("--keep", action="store_true", help="Hold everything after the command.")
    parser.add_argument("--timing", action="store_true", help="Show the waterfall at the end.")
    parser.add_argument(
        "--workspace",
        metavar="ID",
        type=name,
        help="Run in a workspace that is there, and leave it there; takes no PATH.",
    )
    add_sandbox_options(parser)
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, help="End the command after this long."
    )
    add_no_stdin_option(parser)
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        type=name,
        help="ssh://user@host[:port]/directory: run it there, without a mesh.",
    )


def add_no_stdin_option(parser: argparse.ArgumentParser) -> None:
    """Add `-n`, which has the meaning that ssh gives it."""
    parser.add_argument(
        "-n",
        "--no-stdin",
        action="store_true",
        help="Leave standard input alone; else what is piped or redirected in is passed on.",
    )


def add_host_option(parser: argparse.ArgumentParser) -> None:
    """Add `--host` for what an SSH host keeps, which is named by its workspace."""
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        type=name,
        help="ssh://user@host[:port]/directory: a workspace there, by its id, without a mesh.",
    )


def seconds(text: str) -> float:
    """Read how long a command may run."""
    value = number(text)
    if not 0.001 <= value <= 31_536_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 1 ms to 365 days")
    return value


def lease(text: str) -> float:
    """Read how long something is held."""
    value = number(text)
    if not 1 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 1 second to 24 hours")
    return value


def number(text: str) -> float:
    """Read a number of seconds."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None


def name(text: str) -> str:
    """Read what may not be empty."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; leave the option out for none")
    return text


def choices_of(chosen: argparse.Namespace, command: list[str]) -> LaunchChoices:
    """Return what was chosen for a launch."""
    from fairlead_sdk.cli.launch import LaunchChoices

    return LaunchChoices(
        path=chosen.path,
        command=command,
        branch=chosen.branch or "",
        clean=chosen.clean,
        keep=chosen.keep,
        timing=chosen.timing,
        isolation=chosen.isolation or "",
        timeout=chosen.timeout,
        from_=chosen.from_,
        submodules=chosen.submodules,
        sandbox=sandbox_request(chosen),
        workspace=chosen.workspace or "",
        no_stdin=chosen.no_stdin,
    )
