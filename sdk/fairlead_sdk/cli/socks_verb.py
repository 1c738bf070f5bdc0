"""The options of `fairlead socks`."""

from __future__ import annotations

import argparse

from fairlead_sdk.cli.hops import VIA_HELP

SOCKS = """Serve SOCKS5 into a sandbox and its network.

localhost and `sandbox` are the sandbox; any other host is looked up and dialled by the
gateway, where its operator allows it (FAIRLEAD_RELAY_TARGETS). Programs use it as
socks5h://127.0.0.1:1080. Without LAUNCH it is the newest one of this directory's
repository. It stays until Ctrl-C; a tunnel that is cut is attached again."""
DEFAULT_PORT = 1080


def add_socks_options(parser: argparse.ArgumentParser) -> None:
    """Add them to the verb's parser."""
    parser.add_argument(
        "launch",
        metavar="LAUNCH",
        nargs="?",
        default="",
        help="Id of a launch or its beginning, or of a sandbox sbx_….",
    )
    parser.add_argument(
        "-p",
        "--port",
        metavar="PORT",
        type=_port,
        default=DEFAULT_PORT,
        help=f"Local port, {DEFAULT_PORT} where none is given; 0 is a free one.",
    )
    parser.add_argument(
        "--bind",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="Local address, this machine alone (127.0.0.1) where none is given.",
    )
    parser.add_argument("--via", metavar="[LABEL=]URL", action="append", default=[], help=VIA_HELP)
    parser.add_argument(
        "--credentials-file",
        metavar="FILE",
        default="",
        help="Let in who has the USER:PASSWORD in this file; else FAIRLEAD_SOCKS_CREDENTIALS has"
        " one, or nobody is asked.",
    )


def run_socks(chosen: argparse.Namespace, command: list[str]) -> int:
    """Run the verb; leaves with 2 where the usage is wrong."""
    from fairlead_sdk.cli.socks import SocksChoices, socks

    choices = SocksChoices(
        launch=chosen.launch,
        host=chosen.bind,
        port=chosen.port,
        credentials_file=chosen.credentials_file,
        via=chosen.via,
    )
    return socks(choices, is_json=chosen.output == "json")


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
