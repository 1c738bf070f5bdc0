"""`up`, `down` and `status`: a stack that stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from devstack import health
from devstack.errors import INTERRUPTED, UNAVAILABLE, StackError
from devstack.lifetime import AlreadyRunning, live
from devstack.processes import last_lines
from devstack.rooms import Plan, Planner
from devstack.screen import Screen
from devstack.state import StateDirectory
from devstack.supervisor import Supervisor
from fairlead_sdk.discovery import list_contexts, register_stack

_DETACH_SECONDS = 120.0
_DOWN_SECONDS = 20.0
_PAUSE = 0.05


def up(*, path: Path, planner: Planner) -> int:
    """Run a stack in the foreground until a signal; 0 then, and when one runs already."""
    screen = Screen(stream=sys.stderr)
    state = StateDirectory(path)
    _register(screen, path)
    is_ready = False

    async def stay(supervisor: Supervisor, _: Plan) -> int:
        nonlocal is_ready
        is_ready = True
        _summary(screen, state)
        await supervisor.wait()
        return 0

    try:
        status = asyncio.run(live(state=state, planner=planner, screen=screen, scenario=stay))
    except AlreadyRunning:
        return _already_running(screen, state)
    return 0 if is_ready and status == INTERRUPTED else status


def up_detached(*, path: Path, command: tuple[str, ...], as_json: bool) -> int:
    """Start `command`, a foreground `up`, in a session of its own and return when it is ready.

    With `as_json` the description of the stack is written to standard output.
    """
    screen = Screen(stream=sys.stderr)
    state = StateDirectory(path)
    if state.is_held():
        return _running(screen, state, as_json=as_json)
    log = _supervisor_log(state)
    with log.open("wb") as stream:
        process = subprocess.Popen(  # noqa: S603 - this very program
            command,
            env=os.environ | {"FAIRLEAD_STATE": str(path)},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _DETACH_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            described = state.described()
            if described and described.get("pid") == process.pid:
                if as_json:
                    return _running(screen, state, as_json=True)
                _summary(screen, state)
                return 0
            time.sleep(_PAUSE)
        if process.returncode == 0:
            return _running(screen, state, as_json=as_json)
        screen.line("\n".join(last_lines(log, 40)))
        return process.returncode or UNAVAILABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        described = state.described()
        if process.poll() is None and not (described and described.get("pid") == process.pid):
            process.terminate()
            process.wait()


def down(*, path: Path, as_json: bool) -> int:
    """Stop the stack of `path` and return when nothing of it is left; 0 too if there is none."""
    screen = Screen(stream=sys.stderr)
    state = StateDirectory(path)
    holder = state.holder()
    if holder is None:
        screen.line(f"No stack runs from {path}.{_elsewhere(path)}")
        return _stopped(path, as_json=as_json)
    started = time.monotonic()
    number = signal.SIGTERM
    while state.holder() == holder:
        try:
            os.kill(holder, number)
        except ProcessLookupError:
            break
        if _wait_free(state, _DOWN_SECONDS):
            break
        number = signal.SIGKILL
    screen.step(f"stopped the stack of {path}", time.monotonic() - started)
    return _stopped(path, as_json=as_json)


def _stopped(path: Path, *, as_json: bool) -> int:
    if as_json:
        sys.stdout.write(json.dumps({"state": str(path), "running": False}) + "\n")
    return 0


def status(*, path: Path, as_json: bool) -> int:
    """Say what runs from `path`: 0 when all of it serves, 1 when some part does not, 69 when
    nothing runs.
    """
    described = StateDirectory(path).described()
    if described is None:
        if not as_json:
            sys.stderr.write(f"No stack runs from {path}.{_elsewhere(path)}\n")
        _stopped(path, as_json=as_json)
        return UNAVAILABLE
    code, _ = asyncio.run(health.http_answer(f"{described.get('url')}/readyz"))
    is_ready = code == 200
    if as_json:
        answer = {**described, "running": True, "ready": is_ready}
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
        return 0 if is_ready else 1
    lines = [f"{'ready' if is_ready else 'not ready'}: {described.get('url')}"]
    parts = described.get("parts")
    for part in parts if isinstance(parts, list) else []:
        came_back = f", came back {part['restarts']} times" if part.get("restarts") else ""
        lines.append(f"  {part['name']:<22} pid {part['pid']:<8} {part['address']}{came_back}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if is_ready else 1


def _summary(screen: Screen, state: StateDirectory) -> None:
    described = state.described() or {}
    screen.line()
    screen.title(f"The stack runs at {described.get('url')}")
    rows = {
        "gRPC": described.get("grpc"),
        "gateway": described.get("gateway"),
        "sandboxes": described.get("sandboxes"),
        "API key": described.get("api_key_file"),
        "traces": described.get("collector") or f"{described.get('url')}/v1/launches/ID/trace",
        "logs": state.logs,
    }
    for name, value in rows.items():
        screen.line(f"  {name:<9} {value}")


def _running(screen: Screen, state: StateDirectory, *, as_json: bool) -> int:
    if not as_json:
        return _already_running(screen, state)
    answer = {"state": str(state.path), **(state.described() or {}), "running": state.is_held()}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def _already_running(screen: Screen, state: StateDirectory) -> int:
    described = state.described()
    place = f"at {described.get('url')}" if described else "(it is still starting)"
    screen.line(f"A stack is already running from {state.path} {place}.")
    return 0


def _register(screen: Screen, path: Path) -> None:
    """Keep the stack as a context; a home that cannot be written to is no error."""
    try:
        register_stack(path)
    except OSError as error:
        screen.line(f"No context was kept for this stack: {error.strerror}.")


def _elsewhere(path: Path) -> str:
    others = [
        context.name
        for context in list_contexts()
        if context.state and context.is_live and Path(context.state) != path
    ]
    if not others:
        return ""
    return f" Elsewhere: {', '.join(others)}; fairlead --context NAME means one of those."


def _wait_free(state: StateDirectory, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not state.is_held():
            return True
        time.sleep(_PAUSE)
    return False


def _supervisor_log(state: StateDirectory) -> Path:
    try:
        state.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StackError(
            f"The state directory {state.path} cannot be used: {error.strerror}.",
            remedies=("Name another one: FAIRLEAD_STATE=/some/directory",),
        ) from error
    return state.logs / "supervisor.log"
