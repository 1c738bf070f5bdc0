"""`fairlead up`, `down` and `doctor`: the stack on this machine, and what reaches one."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from fairlead_sdk import json_form as form
from fairlead_sdk.cli.running import (
    FAILED,
    Interrupts,
    exit_status_of,
    run,
)
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.errors import FailedPrecondition, FairleadError
from fairlead_sdk.git import run_git
from fairlead_sdk.json_form import JsonObject

_OLDEST_GIT = (2, 31)
_LIMITS: tuple[tuple[str, str, Callable[[int], str]], ...] = (
    ("memory_bytes", "GiB of memory", lambda value: f"{value / 1024**3:.1f}"),
    ("cpu_milli", "processors", lambda value: f"{value / 1000:g}"),
    ("processes", "processes", str),
    ("open_files", "open files", str),
    ("disk_bytes", "GiB of disk", lambda value: f"{value / 1024**3:.1f}"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `status` is the exit status when it is wrong, else 0."""

    check: str
    status: int
    detail: str
    remedy: str = ""

    @property
    def is_fine(self) -> bool:
        """Whether there is nothing to do about it."""
        return self.status == 0


def stack(verb: str, *arguments: str, is_json: bool) -> int:
    """Become a verb of the local stack, so that every signal is the stack's own to answer."""
    failure: FairleadError | None = None
    if importlib.util.find_spec("devstack") is not None:
        try:
            _use_context_of_stack()
        except FairleadError as error:
            failure = error
        else:
            output = ("--output", "json") if is_json else ()
            command = _devstack(verb, *arguments, *output)
            os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted

    async def refuse(terminal: Terminal, interrupts: Interrupts) -> int:
        if failure is not None:
            raise failure
        raise FailedPrecondition(
            "The local stack is not installed here.",
            reason="stack_not_installed",
            remedy="Run `make up` in a checkout of Fairlead, or `docker compose up`.",
        )

    return run(refuse, is_json=is_json)


def _use_context_of_stack() -> None:
    """Let FAIRLEAD_CONTEXT name the stack of `up` and `down` by its state directory."""
    name = os.environ.get("FAIRLEAD_CONTEXT", "").strip()
    if not name:
        return
    from fairlead_sdk.discovery import find_context

    context = find_context(name)
    if not context.state:
        raise FailedPrecondition(
            f"The context {name} is a remote mesh, not a stack of this machine.",
            reason="context_remote",
            remedy="Start and stop it where it runs.",
        )
    os.environ["FAIRLEAD_STATE"] = context.state


def _devstack(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "devstack", *arguments]


def doctor(*, is_json: bool) -> int:
    """Look at what a client needs; for a person also at what a stack on this machine needs."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        findings = [_git(), *[finding async for finding in _mesh()], _webrtc()]
        if terminal.is_json:
            await terminal.document(
                {
                    "checks": [
                        {
                            "check": finding.check,
                            "ok": finding.is_fine,
                            "detail": finding.detail,
                            "remedy": finding.remedy,
                        }
                        for finding in findings
                    ]
                }
            )
        else:
            for line in _lines(findings):
                await terminal.text(line)
        return next((finding.status for finding in findings if finding.status), 0)

    status = run(work, is_json=is_json)
    if not is_json and importlib.util.find_spec("devstack") is not None:
        status = subprocess.call(_devstack("doctor")) or status  # noqa: S603
    return status


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        yield f"{'ok  ' if finding.is_fine else 'FAIL'} {finding.check:<8} {finding.detail}"
        if finding.remedy:
            yield f"     remedy: {finding.remedy}"


def _git() -> Finding:
    try:
        text = run_git("--version").decode("utf-8", "replace").strip()
    except FairleadError as error:
        return Finding("git", FAILED, error.message, error.remedy)
    version = tuple(int(part) for part in re.findall(r"[0-9]+", text)[:2])
    if version < _OLDEST_GIT:
        return Finding("git", FAILED, f"{text} is too old", "Install git 2.31 or newer.")
    return Finding("git", 0, text)


async def _mesh() -> AsyncIterator[Finding]:
    from fairlead_sdk.client import FrontDoor
    from fairlead_sdk.discovery import find_mesh

    try:
        mesh = find_mesh()
    except FairleadError as error:
        yield Finding("mesh", exit_status_of(error), error.message, error.remedy)
        return
    yield Finding("mesh", 0, f"{mesh.url}, found by {mesh.found_by}")
    async with FrontDoor(url=mesh.url, api_key=mesh.api_key) as door:
        for check, path in (("alive", "/healthz"), ("ready", "/readyz"), ("key", "/v1/hosts")):
            try:
                answer = await door.get(path)
            except FairleadError as error:
                yield Finding(check, exit_status_of(error), error.message, error.remedy)
                return
            yield Finding(check, 0, "accepted" if check == "key" else "yes")
        for host in form.children(answer, "hosts"):
            yield _walls(host)
            yield _limits(host)


def _walls(host: JsonObject) -> Finding:
    """Say what isolation a host has, and which walls of it are missing and why."""
    offered = form.texts(host, "isolation")
    walls = form.child(host, "walls") or {}
    described = []
    for isolation in sorted({*offered, *walls}):
        missing = [
            wall for wall in form.children(walls, isolation) if not form.flag(wall, "stands")
        ]
        named = "; ".join(f"{form.text(w, 'name')} ({form.text(w, 'reason')})" for w in missing)
        text = isolation if isolation in offered else f"no {isolation}"
        described.append(f"{text}, missing: {named}" if missing else text)
    found = f"{form.text(host, 'host_id')}: {' / '.join(described)}"
    if not offered:
        return Finding("walls", 0, f"{found}; without walls it serves another tenant only")
    if offered[0] != "process":
        return Finding("walls", 0, found)
    who = "an ordinary user"
    for wall in form.children(walls, "process"):
        if form.text(wall, "name") == "unprivileged" and not form.flag(wall, "stands"):
            who = "root"
    return Finding(
        "walls",
        0,
        f"{found}; programs run on the host as {who} and see its files, processes and network,"
        " for one tenant",
        "Let the worker make user namespaces (see SECURITY.md).",
    )


def _limits(host: JsonObject) -> Finding:
    """Say what the sandboxes of each profile have there, and may ask for at most."""
    described = []
    for profile, limits in sorted((form.child(host, "limits") or {}).items()):
        held = [
            f"{shown(value)} {name}"
            for field, name, shown in _LIMITS
            if isinstance(limits, dict) and (value := form.number(limits, field))
        ]
        described.append(f"{profile}: {', '.join(held) or 'none'}")
    return Finding("limits", 0, f"{form.text(host, 'host_id')}: {'; '.join(described)}")


def _webrtc() -> Finding:
    if importlib.util.find_spec("aiortc") is None:
        return Finding("forward", 0, "not installed: pip install 'fairlead-sdk[webrtc]'")
    return Finding("forward", 0, "installed")
