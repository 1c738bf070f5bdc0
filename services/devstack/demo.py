"""`demo`: a stack of its own in a throw-away directory, one launch of a real repository, the same
again warm, and gone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

from devstack.errors import UNAVAILABLE, StackError
from devstack.lifetime import live
from devstack.rooms import Plan, Planner
from devstack.screen import Screen
from devstack.state import StateDirectory, checkout, remove_tree, throwaway_state
from devstack.supervisor import Supervisor


def demo(*, repository: Path | None, command: str | None, planner: Planner) -> int:
    """Show a launch from beginning to end; return its exit status, 69 if it could not be shown."""
    screen = Screen(stream=sys.stdout)
    started = time.monotonic()
    try:
        source = _repository(repository)
        client = _client()
    except StackError as error:
        screen.failure(error.text())
        return UNAVAILABLE
    path = throwaway_state()
    state = StateDirectory(path)
    tour = command or files("devstack").joinpath("demo_tour.sh").read_text()
    launch = (client, "launch", str(source), "--timing", "--", "sh", "-c", tour)

    async def show(supervisor: Supervisor, plan: Plan) -> int:
        screen.step("five programs started, each ready", time.monotonic() - started)
        environment = _client_environment(plan, state)
        first = await _launch(supervisor, screen, launch, environment, f"A launch of {source.name}")
        if first != 0:
            return first
        return await _launch(supervisor, screen, launch, environment, "The same again, warm")

    try:
        status = asyncio.run(live(state=state, planner=planner, screen=screen, scenario=show))
    finally:
        remove_tree(path)
    if status == 0:
        _farewell(screen, time.monotonic() - started)
    return status


async def _launch(
    supervisor: Supervisor,
    screen: Screen,
    command: tuple[str, ...],
    environment: dict[str, str],
    title: str,
) -> int:
    screen.line()
    screen.title(title)
    started = time.monotonic()
    status = await supervisor.run_guest(command, environment)
    screen.step(f"exit status {status}", time.monotonic() - started)
    return status


def _farewell(screen: Screen, seconds: float) -> None:
    screen.line()
    screen.step("everything stopped, nothing left behind; in all", seconds)
    screen.line("Next:")
    screen.line("  make up                                  keep a stack running")
    screen.line("  .venv/bin/fairlead launch . -- CMD       launch the repository that you are in")
    screen.line("  .venv/bin/fairlead launch --help         what else a launch can do")


def _repository(named: Path | None) -> Path:
    source = (named or checkout() or Path.cwd()).absolute()
    found = subprocess.run(  # noqa: S603 - git, on a directory that the user names
        ["git", "-C", str(source), "rev-parse", "--verify", "--quiet", "HEAD"],  # noqa: S607
        capture_output=True,
        check=False,
    )
    if found.returncode != 0:
        raise StackError(
            f"{source} is not a git repository with at least one commit.",
            remedies=("Name one: make demo REPO=/path/to/repository",),
        )
    return source


def _client() -> str:
    beside = Path(sys.executable).parent / "fairlead"
    found = str(beside) if beside.exists() else shutil.which("fairlead")
    if found is None:
        raise StackError(
            "The `fairlead` command is not installed here.",
            remedies=(
                "Install it: `pip install fairlead-sdk`, or run `make setup` in the checkout.",
            ),
        )
    return found


def _client_environment(plan: Plan, state: StateDirectory) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    # A client that is killed while it packs changes leaves its drafts there, to go with the rest.
    drafts = state.path / "tmp"
    drafts.mkdir(mode=0o700, exist_ok=True)
    return kept | {
        "TMPDIR": str(drafts),
        "FAIRLEAD_URL": plan.url,
        "FAIRLEAD_GRPC": plan.dialled_grpc,
        "FAIRLEAD_STATE": str(state.path),
        "FAIRLEAD_API_KEY": state.api_key.read_text().strip(),
        "FAIRLEAD_AGENT": "0",  # it would outlive the demo
    }
