"""The command `fairlead`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

_TAKES_COMMAND = ("launch", "exec")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; everything after the first `--` is the command to run over there."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command: list[str] = []
    if "--" in given and given[0] in _TAKES_COMMAND:
        cut = given.index("--")
        given, command = given[:cut], given[cut + 1 :] or [""]
    # Importing makes much and drops nothing: looking for garbage costs a tenth of the start.
    # `running` turns it on again.
    gc.disable()
    try:
        from fairlead_sdk.cli.verbs import run_verb

        raise SystemExit(run_verb(given, command))
    finally:
        gc.enable()
