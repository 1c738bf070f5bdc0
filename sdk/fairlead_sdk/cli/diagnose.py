"""`fairlead session diagnose`: a table of what works, and sentences about what does not."""

from __future__ import annotations

import asyncio

from fairlead_sdk.cli.running import Interrupts, exit_status_of, run
from fairlead_sdk.cli.tables import Row, drawn_table
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.diagnosis import NAMES, Asked, Diagnosis, Finding, Outcome, Seen, diagnose_mesh
from fairlead_sdk.discovery import Mesh, find_mesh
from fairlead_sdk.fairlead import AsyncFairlead

_DIM = frozenset({Outcome.NOT_TRIED, Outcome.NOT_CONFIGURED})
_SEARCHED = 100


def diagnose(launch: str, asked: Asked, *, is_json: bool) -> int:
    """Look at everything, tell what was found, and give the exit status of the first fault."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        mesh = find_mesh()
        found = await _found(mesh, launch, asked, terminal)
        terminal.status("")
        if terminal.is_json:
            await terminal.document(
                {
                    "works": found.works,
                    "url": mesh.url,
                    "path": asked.path.value,
                    "probes": asked.probes,
                    "checks": [finding.document() for finding in found.findings],
                }
            )
        else:
            await terminal.text(_drawn(found))
        first = found.faults[0].error if found.faults else None
        return 0 if first is None else exit_status_of(first)

    return run(work, is_json=is_json)


async def _found(mesh: Mesh, launch: str, asked: Asked, terminal: Terminal) -> Diagnosis:
    from fairlead_sdk.mesh_probes import MeshProbes
    from fairlead_sdk.probed_sessions import ProbedSessions

    async with AsyncFairlead(url=mesh.url, api_key=mesh.api_key) as client:
        sessions = ProbedSessions(door=client.door, asked=asked)
        probes = MeshProbes(
            door=client.door,
            has_key=bool(mesh.api_key),
            find_target=lambda: _target(client, launch),
            path=asked.path,
            sessions=sessions,
            probe_carrier=lambda target, carrier: _attached(client, target, carrier),
        )
        try:
            return await diagnose_mesh(
                asked,
                probes.looks,
                now=asyncio.get_running_loop().time,
                on_check=lambda check: terminal.status(f"{NAMES[check]} …"),
            )
        finally:
            await sessions.close()


async def _attached(client: AsyncFairlead, target: str, carrier: str) -> Seen:
    """Try one carrier of tunnels."""
    from fairlead_sdk.session_errors import WebrtcMissing

    try:
        from fairlead_sdk.probed_carriers import probe_carrier
        from fairlead_sdk.session_meeting import meeting
        from fairlead_tunnel.ways import Kind
    except ImportError as error:
        raise WebrtcMissing from error
    (kind,) = [each for each in Kind if each.carrier == carrier]
    return await probe_carrier(client.sessions, target, kind, meeting(client.sessions))


async def _target(client: AsyncFairlead, launch: str) -> str:
    """Find the id of what to connect to: what was named, else the newest launch that is held."""
    from fairlead_sdk.cli.connection import find_launch, find_sandbox
    from fairlead_sdk.diagnosis_faults import nothing_held

    if launch.startswith("sbx_"):
        return await find_sandbox(client, launch)
    if launch:
        return (await find_launch(client, launch)).launch_id
    listed = await client.launches.list(limit=_SEARCHED)
    held = next((each for each in listed if each.is_held), None)
    if held is None:
        raise nothing_held()
    return held.launch_id


def _drawn(found: Diagnosis) -> str:
    rows = [_row(finding) for finding in found.findings]
    lines = [drawn_table(("CHECK", "RESULT", "TIME", "WHAT"), rows)]
    for finding in found.faults:
        lines += ["", f"{NAMES[finding.check]}: {finding.sentence}"]
        if finding.error is not None and finding.error.remedy:
            lines.append(f"  {finding.error.remedy}")
    return "\n".join(lines)


def _row(finding: Finding) -> Row:
    seconds = finding.seconds
    taken = "" if seconds is None else f"{seconds * 1000:.0f} ms"
    figures = ", ".join(
        f"{name.removesuffix('_ms').replace('_', ' ')} {value:.0f} ms"
        for name, value in finding.milliseconds.items()
    )
    what = f"{finding.sentence} ({figures})" if figures else finding.sentence
    result = finding.outcome.value.replace("_", " ")
    return Row((NAMES[finding.check], result, taken, what), is_dim=finding.outcome in _DIM)
