"""Starting the agent on demand, in the background, for the launches that come later."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from fairlead_sdk.agent_client import dial
from fairlead_sdk.agent_place import agent_socket_path


def start_agent(environment: Mapping[str, str]) -> None:
    """Start an agent for this environment unless there is one, or shall be none.

    It outlives this process; of two that start at once, one gives way.
    """
    if agent_socket_path(environment) is None:
        return
    plug = dial(environment, "status")
    if plug is not None:
        plug.close()
        return
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "fairlead_sdk.agent"],
            cwd="/",
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return
    process.returncode = 0  # it is not ours to wait for
