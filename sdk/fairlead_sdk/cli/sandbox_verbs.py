"""The verbs below `fairlead sandbox` and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from fairlead_sdk.cli.launch_options import (
    add_network_options,
    add_sandbox_options,
    lease,
    name,
    sandbox_request,
)

_ID = "Id of a sandbox, or its beginning."
_CREATE = """Make a sandbox, and print its id.

It is empty, or works in a workspace that is there (--workspace). What is demanded is
had, or refused."""
_SHOW = """Show one sandbox, with its limits and walls.

Of walls that are missing it says why."""
_NETWORK = """Show or change what a sandbox reaches.

Also what it lately tried to reach. With --network or --allow the policy is changed
first: connections that it does not allow are cut."""
_RM = """Give sandboxes back.

Every process in them is killed. A launch's goes with the launch (`fairlead kill`)."""

Run = Callable[[argparse.Namespace, list[str]], int]
AddVerb = Callable[[str, Run, str, str], argparse.ArgumentParser]


def add_sandbox_verbs(add: AddVerb) -> None:
    """Add the verbs with `add`."""
    create = add("create", _create, _CREATE, "")
    create.add_argument(
        "--workspace", metavar="WORKSPACE", type=name, help="Workspace to work in: id or name."
    )
    create.add_argument("--host", metavar="ID", type=name, help="Id of the host to be on.")
    add_sandbox_options(create)
    add("ls", _ls, "List sandboxes, also those of launches.", "")
    show = add("show", _show, _SHOW, "SANDBOX")
    show.add_argument("sandbox", metavar="SANDBOX", help=_ID)
    network = add("network", _network, _NETWORK, "SANDBOX")
    network.add_argument("sandbox", metavar="SANDBOX", help=_ID)
    add_network_options(network, otherwise="as it is")
    renew = add("renew", _renew, "Hold a sandbox for longer.", "SANDBOX")
    renew.add_argument("sandbox", metavar="SANDBOX", help=_ID)
    for parser, otherwise in ((create, "the profile's"), (renew, "30 minutes")):
        parser.add_argument(
            "--lease", metavar="SECONDS", type=lease, help=f"How long it is held; else {otherwise}."
        )
    remove = add("rm", _rm, _RM, "SANDBOX...")
    remove.add_argument("sandboxes", metavar="SANDBOX", nargs="+", help=_ID)


def _is_json(chosen: argparse.Namespace) -> bool:
    return bool(chosen.output == "json")


def _create(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.sandbox import SandboxChoices, create

    choices = SandboxChoices(
        isolation=chosen.isolation or "",
        wish=sandbox_request(chosen),
        workspace=chosen.workspace or "",
        host_id=chosen.host or "",
        lease=chosen.lease,
    )
    return create(choices, is_json=_is_json(chosen))


def _ls(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.sandbox import ls

    return ls(is_json=_is_json(chosen))


def _show(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.sandbox import show

    return show(chosen.sandbox, is_json=_is_json(chosen))


def _network(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.sandbox_network import network

    mode = chosen.network or ("egress" if chosen.allow else "")
    return network(chosen.sandbox, mode=mode, allow=chosen.allow, is_json=_is_json(chosen))


def _renew(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.sandbox import renew

    return renew(chosen.sandbox, lease=chosen.lease, is_json=_is_json(chosen))


def _rm(chosen: argparse.Namespace, command: list[str]) -> int:
    from fairlead_sdk.cli.sandbox import rm

    return rm(chosen.sandboxes, is_json=_is_json(chosen))
