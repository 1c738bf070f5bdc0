"""The verbs below `fairlead session` and their options."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

MOST_PROBES = 100

_DIAGNOSE = """Show what keeps a session from connecting, and what to do.

DNS, the front door, a WebSocket, STUN and TURN servers, and a connection to the
gateway, as `forward` makes one. Without LAUNCH to the newest launch that holds a
sandbox. The exit status is 0 only when all that was asked works."""

_CLOSE = """Close sessions.

Every channel in them ends: what `forward` leads through them is reset."""
_ID = "Id of a session, or the name that its client gave it."

Run = Callable[[argparse.Namespace, list[str]], int]
AddVerb = Callable[[str, Run, str, str], argparse.ArgumentParser]


def add_session_verbs(add: AddVerb) -> None:
    """Add the verbs with `add`."""
    parser = add("diagnose", _diagnose, _DIAGNOSE, "[LAUNCH]")
    parser.add_argument(
        "launch",
        metavar="LAUNCH",
        nargs="?",
        default="",
        help="Id of a launch or its beginning, or of a sandbox sbx_….",
    )
    paths = parser.add_mutually_exclusive_group()
    paths.add_argument(
        "--relay-only", action="store_true", help="Connect through a TURN server or not at all."
    )
    paths.add_argument(
        "--direct-only", action="store_true", help="Connect without a TURN server or not at all."
    )
    parser.add_argument(
        "--probes",
        metavar="N",
        type=_probes,
        default=1,
        help=f"Sessions that are opened at the same time: 1 to {MOST_PROBES}; else 1.",
    )
    parser.add_argument(
        "--hold",
        metavar="SECONDS",
        type=_seconds,
        default=0.0,
        help="Keep the connections open for so long.",
    )
    ls = add("ls", _ls, "List sessions.", "")
    ls.add_argument(
        "--tenant",
        metavar="NAME",
        default="",
        help="Those of another tenant, with an administrator's key.",
    )
    show = add("show", _show, "Show one session.", "SESSION")
    show.add_argument("session", metavar="SESSION", help=_ID)
    close = add("close", _close, _CLOSE, "SESSION...")
    close.add_argument("sessions", metavar="SESSION", nargs="+", help=_ID)
    close.add_argument(
        "--admin",
        action="store_true",
        help="Close those of any tenant, with an administrator's key.",
    )
    close.add_argument(
        "--message", metavar="TEXT", default="", help="With --admin: tell whoever has them why."
    )


def _probes(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= MOST_PROBES:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {MOST_PROBES}")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if 0 <= seconds <= 86_400:
        return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 86400")


def _diagnose(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.diagnose import diagnose
    from fairlead_sdk.diagnosis import Asked, IcePath

    path = IcePath.ALL
    if chosen.relay_only:
        path = IcePath.RELAY
    elif chosen.direct_only:
        path = IcePath.DIRECT
    asked = Asked(path=path, probes=chosen.probes, hold_seconds=chosen.hold)
    return diagnose(chosen.launch, asked, is_json=bool(chosen.output == "json"))


def _ls(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.session import ls

    return ls(tenant=chosen.tenant, is_json=bool(chosen.output == "json"))


def _show(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.session import show

    return show(chosen.session, is_json=bool(chosen.output == "json"))


def _close(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.session import close

    if chosen.message and not chosen.admin:
        chosen.parser.error("--message goes with --admin")
    return close(
        chosen.sessions,
        as_admin=chosen.admin,
        message=chosen.message,
        is_json=bool(chosen.output == "json"),
    )
