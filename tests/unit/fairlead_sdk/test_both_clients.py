"""The blocking client has what the asynchronous one has, by the same names and with the same
parameters.
"""

from __future__ import annotations

import inspect

import pytest

from fairlead_sdk.blocking import Fairlead, Launch, Launches
from fairlead_sdk.blocking_commands import Commands, RunningCommand
from fairlead_sdk.blocking_files import Files
from fairlead_sdk.blocking_sandboxes import Sandbox, Sandboxes
from fairlead_sdk.blocking_sessions import Session, Sessions
from fairlead_sdk.blocking_terminals import Pty, PtyTerminal
from fairlead_sdk.blocking_workspaces import Workspaces
from fairlead_sdk.commands import AsyncCommands, AsyncRunningCommand
from fairlead_sdk.fairlead import AsyncFairlead, AsyncLaunch
from fairlead_sdk.files import AsyncFiles
from fairlead_sdk.launches import AsyncLaunches
from fairlead_sdk.peer_session import AsyncSession
from fairlead_sdk.sandboxes import AsyncSandbox, AsyncSandboxes
from fairlead_sdk.sessions import AsyncSessions
from fairlead_sdk.terminals import AsyncPty, AsyncTerminal
from fairlead_sdk.workspaces import AsyncWorkspaces

# What launches and workspaces are made of, below `launch` and `create`, and a terminal's events,
# of which the blocking one gives the output.
_ASYNC_ONLY = {
    "AsyncLaunches": {"describe", "start", "trace", "withdraw"},
    # What a session is made of, below `open`.
    "AsyncSession": {"open_channel", "open_port", "running", "wait_connected", "wait_down"},
    "AsyncSessions": {
        "add_candidates",
        "close_session",
        "fresh_servers",
        "open_session",
        "restart_session",
        "send_offer",
        "watch_session",
    },
    "AsyncTerminal": {"attach", "events"},
    "AsyncWorkspaces": {"materialize"},
}
# In asyncio the caller has `asyncio.timeout`.
_MORE_PARAMETERS = {("RunningCommand", "wait"): {"timeout"}}


def calls_of(client: type) -> dict[str, dict[str, inspect.Parameter]]:
    """Give the parameters of its public calls."""
    return {
        name: dict(inspect.signature(inspect.unwrap(call)).parameters)
        for name, call in inspect.getmembers(client, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("asynchronous", "blocking"),
    [
        (AsyncFairlead, Fairlead),
        (AsyncLaunch, Launch),
        (AsyncLaunches, Launches),
        (AsyncCommands, Commands),
        (AsyncRunningCommand, RunningCommand),
        (AsyncFiles, Files),
        (AsyncPty, Pty),
        (AsyncTerminal, PtyTerminal),
        (AsyncSandbox, Sandbox),
        (AsyncSandboxes, Sandboxes),
        (AsyncSession, Session),
        (AsyncSessions, Sessions),
        (AsyncWorkspaces, Workspaces),
    ],
)
def test_they_take_the_same(asynchronous: type, blocking: type) -> None:
    there, here = calls_of(asynchronous), calls_of(blocking)
    assert set(there) - set(here) == _ASYNC_ONLY.get(asynchronous.__name__, set())
    assert set(here) <= set(there)
    for name, parameters in here.items():
        more = _MORE_PARAMETERS.get((blocking.__name__, name), set())
        assert set(parameters) - set(there[name]) == more
        for each, parameter in there[name].items():
            found = parameters[each]
            assert (found.kind, found.default) == (parameter.kind, parameter.default), (name, each)
