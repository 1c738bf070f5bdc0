"""The command `fairlead`."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SPANS_GO_TO = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_TAKES_COMMAND = ("launch", "exec", "shell")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; everything after the first `--` is the command to run over there."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command: list[str] = []
    if "--" in given and given[0] in _TAKES_COMMAND:
        cut = given.index("--")
        given, command = given[:cut], given[cut + 1 :] or [""]
    _take_context(given)
    # A launch takes one PATH, so a second word can only mean the verb.
    if given[:2] == ["launch", "renew"] and any(word[:1] != "-" for word in given[2:]):
        del given[0]
    # Importing makes much and drops nothing: looking for garbage costs a tenth of the start.
    # `running` turns it on again.
    gc.disable()
    try:
        begun = None
        is_traced = any(os.environ.get(name) for name in _SPANS_GO_TO)
        # The agent may have been started with other places for spans, or none.
        is_agents = not is_traced and not _feeds_command(given, command)
        if given[:1] == ["launch"] and is_agents:
            from fairlead_sdk.agent_client import launch_by_agent

            done = launch_by_agent(given, command)
            if isinstance(done, int):
                raise SystemExit(done)
            begun = done
        from fairlead_sdk.cli.verbs import run_verb

        if is_traced:
            from fairlead_sdk.tracing import exported_spans

            with exported_spans():
                raise SystemExit(run_verb(given, command, begun))
        raise SystemExit(run_verb(given, command, begun))
    finally:
        gc.enable()


def _feeds_command(given: list[str], command: list[str]) -> bool:
    """Whether standard input goes to the command; the agent cannot read it."""
    from fairlead_sdk.cli.standard_input import has_standard_input

    is_refused = "-n" in given or "--no-stdin" in given
    return bool(command) and not is_refused and has_standard_input()


def _take_context(given: list[str]) -> None:
    """Move `--context NAME` out of `given` into FAIRLEAD_CONTEXT; the last one counts.

    Without a name it stays where it is, for the parser to refuse.
    """
    index = 0
    while index < len(given):
        option, equals, name = given[index].partition("=")
        if option != "--context":
            index += 1
            continue
        taken = 1 if equals else 2
        name = name if equals else "".join(given[index + 1 : index + 2])
        if not name:
            return
        if os.environ.get("FAIRLEAD_URL", "").strip():
            sys.stderr.write("fairlead: --context has no effect while FAIRLEAD_URL is set\n")
            raise SystemExit(2)
        os.environ["FAIRLEAD_CONTEXT"] = name
        del given[index : index + taken]
