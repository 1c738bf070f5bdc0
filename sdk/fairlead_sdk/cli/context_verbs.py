"""`fairlead context ls|use|add|rm`: the meshes that this user has, by name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from fairlead_sdk.cli.running import Interrupts, run
from fairlead_sdk.cli.tables import Row, drawn_table
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.discovery import (
    Context,
    add_context,
    choose_context,
    list_contexts,
    remove_context,
)

_USE = """Choose the mesh for commands that name none.

A stack in `.fairlead` of this directory or above it comes first, and so do
FAIRLEAD_URL, --context, FAIRLEAD_CONTEXT and FAIRLEAD_STATE."""
_ADD = """Keep a remote mesh under a name.

Its API key is read from FAIRLEAD_API_KEY."""

Run = Callable[[argparse.Namespace, list[str]], int]
AddVerb = Callable[[str, Run, str, str], argparse.ArgumentParser]


def add_context_verbs(add: AddVerb) -> None:
    """Add the verbs with `add`."""
    add("ls", _ls, "List the contexts.", "")
    add("use", _use, _USE, "NAME").add_argument("name", metavar="NAME", help="Name of a context.")
    parser = add("add", _add, _ADD, "NAME URL")
    parser.add_argument("name", metavar="NAME", help="1 to 63 letters, digits, `.`, `_`, `-`.")
    parser.add_argument(
        "url", metavar="URL", help="Address of its front door, http:// or https://."
    )
    add("rm", _rm, "Forget a context; its mesh goes on.", "NAME").add_argument(
        "name", metavar="NAME", help="Name of a context."
    )


def _ls(chosen: argparse.Namespace, command: list[str]) -> int:
    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        contexts = list_contexts()
        if terminal.is_json:
            await terminal.document({"contexts": [_document(context) for context in contexts]})
        elif contexts:
            rows = [
                Row(
                    (
                        "*" if context.is_chosen else "",
                        context.name,
                        context.url or "stopped",
                        context.state,
                    ),
                    is_dim=not context.is_live,
                )
                for context in contexts
            ]
            await terminal.text(drawn_table(("", "NAME", "ADDRESS", "STATE DIRECTORY"), rows))
        else:
            terminal.say("there are none; `fairlead up` and `fairlead context add` make one.")
        return 0

    return run(work, is_json=chosen.output == "json")


def _use(chosen: argparse.Namespace, command: list[str]) -> int:
    return _change(chosen, lambda: choose_context(chosen.name), f"{chosen.name} is used now.")


def _add(chosen: argparse.Namespace, command: list[str]) -> int:
    key = os.environ.get("FAIRLEAD_API_KEY", "").strip()
    return _change(
        chosen,
        lambda: add_context(chosen.name, url=chosen.url, api_key=key),
        f"{chosen.name} is kept{'' if key else ', without a key (set FAIRLEAD_API_KEY)'}.",
    )


def _rm(chosen: argparse.Namespace, command: list[str]) -> int:
    return _change(chosen, lambda: remove_context(chosen.name), f"{chosen.name} is forgotten.")


def _change(chosen: argparse.Namespace, change: Callable[[], object], sentence: str) -> int:
    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        change()
        if terminal.is_json:
            await terminal.document({"contexts": [_document(each) for each in list_contexts()]})
        terminal.say(sentence)
        return 0

    return run(work, is_json=chosen.output == "json")


def _document(context: Context) -> dict[str, object]:
    return {
        "name": context.name,
        "url": context.url,
        "state": context.state,
        "live": context.is_live,
        "chosen": context.is_chosen,
    }
