"""`git upload-pack` at the other end of an `ssh` process (OpenSSH), which is told the address that
was judged and reads nothing but the tenant's own key and known hosts.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from workspace_provisioner.origins import Origin, OriginFailed, OriginFault
from workspace_provisioner.transport.credentials import SshIdentity
from workspace_provisioner.transport.https import CONNECT_SECONDS, MOST_GREETING_BYTES
from workspace_provisioner.transport.packet_lines import PacketReader

_COMPLAINT_BYTES = 8 * 1024


@dataclass(slots=True)
class SshLine:
    """One ssh process, to the first of `addresses` that answers."""

    origin: Origin
    addresses: Sequence[str]
    identity: SshIdentity | None
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)

    async def open(self) -> PacketReader:
        if self.identity is None:
            raise OriginFailed(OriginFault.UNAUTHORIZED, "the tenant has no key for it")
        failure = OriginFailed(OriginFault.UNREACHABLE, "it has no address")
        for address in self.addresses:
            process = self._process = await self._start(address, self.identity)
            reader = _stdout(process)
            try:
                first = await reader.readexactly(4)
            except asyncio.IncompleteReadError:
                failure = await self._failure(process)
                if failure.fault is not OriginFault.UNREACHABLE:
                    break
                continue
            return PacketReader(
                read_exactly=_Prefixed(first, reader).read_exactly, limit=MOST_GREETING_BYTES
            )
        raise failure

    async def ask(self, request: bytes) -> PacketReader:
        process = self._process
        if process is None or process.stdin is None:
            raise OriginFailed(OriginFault.UNREACHABLE, "the connection is closed")
        process.stdin.write(request)
        await process.stdin.drain()
        return PacketReader(read_exactly=_stdout(process).readexactly, limit=MOST_GREETING_BYTES)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        with suppress(BrokenPipeError, ConnectionResetError):
            await process.communicate()

    async def _start(self, address: str, identity: SshIdentity) -> asyncio.subprocess.Process:
        program = shutil.which("ssh")
        if program is None:
            raise OriginFailed(OriginFault.UNREACHABLE, "this host has no ssh program")
        await self.close()
        return await asyncio.create_subprocess_exec(
            program,
            *ssh_arguments(self.origin, address, identity),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.defpath, "HOME": "/nonexistent", "LC_ALL": "C"},
            cwd="/",
            start_new_session=True,
        )

    async def _failure(self, process: asyncio.subprocess.Process) -> OriginFailed:
        """Tell from ssh's complaint why nothing came."""
        assert process.stderr is not None  # noqa: S101 - it was asked for
        complaint = (await process.stderr.read(_COMPLAINT_BYTES)).decode("utf-8", "replace")
        if "Host key verification failed" in complaint or "host key" in complaint.lower():
            return OriginFailed(OriginFault.DENIED, "its host key is not one that is known")
        if "Permission denied" in complaint or "UNPROTECTED PRIVATE KEY" in complaint:
            return OriginFailed(OriginFault.UNAUTHORIZED, "it refuses the tenant's key")
        if "timed out" in complaint:
            return OriginFailed(OriginFault.UNREACHABLE, "it does not answer")
        return OriginFailed(OriginFault.UNREACHABLE, "it ended the connection")


def ssh_arguments(origin: Origin, address: str, identity: SshIdentity) -> list[str]:
    """Return the arguments of ssh: no configuration, no agent, no forwarding, no question, and
    only hosts that are known.
    """
    alias = origin.host if origin.port == 22 else f"[{origin.host}]:{origin.port}"
    options = {
        "HostName": address,
        "HostKeyAlias": alias,
        "Port": str(origin.port),
        "User": origin.user or "git",
        "IdentityFile": f'"{identity.key}"',
        "UserKnownHostsFile": f'"{identity.known_hosts}"',
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "CheckHostIP": "no",
        "UpdateHostKeys": "no",
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "PreferredAuthentications": "publickey",
        "BatchMode": "yes",
        "ClearAllForwardings": "yes",
        "ForwardAgent": "no",
        "PermitLocalCommand": "no",
        "ProxyCommand": "none",
        "ControlPath": "none",
        "CanonicalizeHostname": "no",
        "ConnectTimeout": str(round(CONNECT_SECONDS)),
        "SetEnv": "GIT_PROTOCOL=version=2",
        "LogLevel": "ERROR",
    }
    written = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["-F", "none", "-T", *written, "--", origin.host, _command(origin.path)]


def _command(path: str) -> str:
    return f"git-upload-pack {shlex.quote(path)}"


def _stdout(process: asyncio.subprocess.Process) -> asyncio.StreamReader:
    assert process.stdout is not None  # noqa: S101 - it was asked for
    return process.stdout


@dataclass(slots=True)
class _Prefixed:
    """A reader whose first bytes were read already."""

    first: bytes
    reader: asyncio.StreamReader

    async def read_exactly(self, count: int) -> bytes:
        if not self.first:
            return await self.reader.readexactly(count)
        taken, self.first = self.first[:count], self.first[count:]
        rest = count - len(taken)
        return taken + (await self.reader.readexactly(rest) if rest else b"")
