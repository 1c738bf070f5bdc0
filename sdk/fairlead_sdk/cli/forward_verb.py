"""The options of `fairlead forward`."""

from __future__ import annotations

import argparse

from fairlead_sdk.cli.hops import VIA_HELP

FORWARD = """Lead local ports into a sandbox.

With HOST the gateway dials that host, where its operator allows it
(FAIRLEAD_RELAY_TARGETS); an IPv6 address stands in brackets. LOCAL is a port, or a
path of a socket (it has a slash); without it, it is the same port here, or a free
one where that is taken. It stays until Ctrl-C, with --detach in the background
until --stop. It goes over a tunnel, which is attached again when it is cut, and over
WebRTC where no carrier of a tunnel can be reached."""
FORWARD_USAGE = "LAUNCH [LOCAL:][HOST:]PORT... | --list | --stop WHAT"


def add_forward_options(parser: argparse.ArgumentParser) -> None:
    """Add them to the verb's parser."""
    parser.add_argument(
        "launch",
        metavar="LAUNCH",
        nargs="?",
        default="",
        help="Id of a launch or its beginning, or of a sandbox sbx_….",
    )
    parser.add_argument(
        "ways",
        metavar="[LOCAL:][HOST:]PORT",
        nargs="*",
        default=(),
        help="Port in the sandbox, or of HOST, and the one here.",
    )
    parser.add_argument(
        "-d", "--detach", action="store_true", help="Leave it in the background once it listens."
    )
    parser.add_argument(
        "--seal-secret-file",
        metavar="FILE",
        default="",
        help="Go over WebRTC, and seal what is said to the gateway with the secret in this file,"
        " which the gateway has too; else FAIRLEAD_SEAL_SECRET_FILE.",
    )
    parser.add_argument("--via", metavar="[LABEL=]URL", action="append", default=[], help=VIA_HELP)
    parser.add_argument("--list", action="store_true", help="List what this user forwards here.")
    parser.add_argument(
        "--stop",
        action="store_true",
        help="End a forward or proxy, with all of its ports: WHAT is a local port, HOST:PORT, path,"
        " or the id of its session, launch or sandbox.",
    )
    parser.add_argument("--all", action="store_true", help="With --stop: all that WHAT means.")
    parser.add_argument("--ready", type=int, default=-1, help=argparse.SUPPRESS)


def run_forward(chosen: argparse.Namespace, command: list[str]) -> int:
    """Run the verb; leaves with 2 where the usage is wrong."""
    is_json = bool(chosen.output == "json")
    if chosen.list and (chosen.stop or chosen.launch):
        chosen.parser.error("--list goes alone")
    if chosen.stop and (not chosen.launch or chosen.ways):
        chosen.parser.error("--stop goes with one WHAT")
    if (chosen.list or chosen.stop) and chosen.detach:
        chosen.parser.error("--detach is for a forward that begins")
    if chosen.all and not chosen.stop:
        chosen.parser.error("--all goes with --stop")
    if chosen.list or chosen.stop:
        from fairlead_sdk.cli.forward_list import ls, stop

        if chosen.list:
            return ls(is_json=is_json)
        return stop(chosen.launch, every=chosen.all, is_json=is_json)
    if not chosen.ways:
        chosen.parser.error("LAUNCH and PORT are needed")
    from fairlead_sdk.cli.forward import ForwardChoices, detach, forward

    choices = ForwardChoices(
        launch=chosen.launch,
        ways=chosen.ways,
        seal_secret_file=chosen.seal_secret_file,
        via=chosen.via,
    )
    if chosen.detach:
        return detach(choices, is_json=is_json)
    return forward(choices, ready=chosen.ready, is_json=is_json)
