"""How a command ended, in a sentence."""

from __future__ import annotations

import signal

from fairlead_sdk.records import Exit


def ending_of(exit_: Exit) -> str:
    """Say what the exit status alone does not; empty for an ordinary end and for Ctrl-C."""
    match exit_.reason:
        case "timed_out":
            return "the command did not end in time and was killed."
        case "signalled" if exit_.signal is not None:
            if exit_.signal == signal.SIGINT:
                return ""
            try:
                return f"the command was ended by {signal.Signals(exit_.signal).name}."
            except ValueError:
                return f"the command was ended by signal {exit_.signal}."
        case "released":
            return "the sandbox was released while the command ran."
        case "host_lost":
            return "the host was lost while the command ran."
        case _:
            return ""
