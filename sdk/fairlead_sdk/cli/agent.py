"""`fairlead agent`: whether the background process that makes launches fast is there."""

from __future__ import annotations

import os

from fairlead_sdk.agent_client import dial
from fairlead_sdk.agent_place import agent_socket_path
from fairlead_sdk.cli.running import FAILED, Interrupts, run
from fairlead_sdk.cli.terminal import Terminal


def agent(*, stop: bool, is_json: bool) -> int:
    """Show or stop the agent of this environment; 1 when there is none."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        lines = _asked("stop" if stop else "status")
        document: dict[str, object] = {"running": bool(lines) and not stop}
        if lines and not stop:
            pid, launches = lines[0].split()
            hosts = [line for line in lines[1:] if line.startswith("ssh://")]
            doors = [line for line in lines[1:] if line not in hosts]
            document |= {"pid": int(pid), "launches": int(launches)}
            document |= {"front_doors": doors, "hosts": hosts}
        if is_json:
            await terminal.document(document)
        elif stop:
            await terminal.text("The agent was stopped." if lines else "There is no agent.")
        elif lines:
            places = ", ".join(lines[1:]) or "no front door yet"
            await terminal.text(f"The agent runs (pid {pid}); {launches} launches; {places}.")
        elif agent_socket_path(os.environ) is None:
            await terminal.text("There is no agent: FAIRLEAD_AGENT=0, or no place for its socket.")
        else:
            await terminal.text("There is no agent; the next launch starts one.")
        return 0 if lines or stop else FAILED

    return run(work, is_json=is_json)


def _asked(verb: str) -> list[str]:
    """Give the lines of the agent's answer; none when there is no agent."""
    plug = dial(os.environ, verb)
    if plug is None:
        return []
    answer = b""
    try:
        while received := plug.recv(65536):
            answer += received
    except OSError:
        return []
    finally:
        plug.close()
    first, *lines = answer.decode("utf-8", "replace").splitlines() or [""]
    return (lines or [""]) if first == "ok" else []
