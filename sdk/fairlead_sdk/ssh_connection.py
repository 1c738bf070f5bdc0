"""One connection to a host: the system's ssh, the program sent through it, and its calls."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from fairlead_sdk import ssh_bootstrap
from fairlead_sdk.errors import InvalidArgument
from fairlead_sdk.ssh_address import SshAddress
from fairlead_sdk.ssh_channel import Answer, HostChannel
from fairlead_sdk.ssh_errors import (
    ConnectionLost,
    SshMissing,
    SshUnreachable,
    error_from_ssh,
)
from fairlead_sdk.ssh_program import HostProgram, make_host_program

CONNECT_SECONDS = 30.0
_NOISE_BYTES = 1024 * 1024
_COMPLAINT_BYTES = 16 * 1024
_LEAVING_SECONDS = 2.0
# The user's own configuration holds for the rest: keys, agent, known hosts, jump hosts, aliases. A
# master that is there already is used, and none is left behind.
_OPTIONS = (
    "-T",
    "-a",
    "-x",
    *("-o", "BatchMode=yes"),
    *("-o", "ClearAllForwardings=yes"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ControlMaster=no"),
    *("-o", "LogLevel=ERROR"),
    *("-o", "PermitLocalCommand=no"),
    *("-o", "RemoteCommand=none"),
    *("-o", "RequestTTY=no"),
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=3"),
)


def ssh_program() -> tuple[str, ...]:
    """Give the program to connect with: FAIRLEAD_SSH, with options as for a shell, or `ssh`."""
    return tuple(shlex.split(os.environ.get("FAIRLEAD_SSH", ""))) or ("ssh",)


class SshConnection:
    """An open connection; `hello` is what the host said of itself."""

    def __init__(self, *, channel: HostChannel, hello: Answer) -> None:
        self.channel = channel
        self.hello = hello


@asynccontextmanager
async def connected(
    address: SshAddress, *, program: Sequence[str] = ()
) -> AsyncIterator[SshConnection]:
    """Connect, and hold the connection for the block.

    Raises `SshUnreachable`, `SshUnauthorized`, `HostKeyUnknown`, `HostKeyChanged`, `HostUnusable`
    and what the host's program says when it cannot start.
    """
    # Made while ssh is still shaking hands.
    sending = asyncio.ensure_future(asyncio.to_thread(make_host_program))
    nonce = secrets.token_hex(16)
    try:
        process = await _started(address, program or ssh_program(), nonce)
    except BaseException:
        sending.cancel()
        raise
    complaint = _Complaint()
    listening = asyncio.ensure_future(complaint.listen(process))
    following: asyncio.Future[None] | None = None
    try:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await _bootstrapped(address, process, nonce, await sending)
                channel = _channel(address, process)
                following = asyncio.ensure_future(channel.follow())
                hello = await channel.hello()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, ConnectionLost):
            status = await _status(process)
            await asyncio.wait((listening,), timeout=_LEAVING_SECONDS)
            raise error_from_ssh(
                address.destination, status, complaint.text(), port=address.port
            ) from None
        except asyncio.LimitOverrunError:
            cause = "its login scripts write without end"
            raise SshUnreachable(address.destination, cause, address.port) from None
        yield SshConnection(channel=channel, hello=hello)
    finally:
        sending.cancel()
        await _ended(process)
        for task in (listening, *([following] if following else [])):
            task.cancel()
            await asyncio.wait((task,))


async def _started(address: SshAddress, program: Sequence[str], nonce: str) -> Process:
    port = ("-p", str(address.port)) if address.port else ()
    user = ("-l", address.user) if address.user else ()
    arguments = (*program, *_OPTIONS, *port, *user, "--", address.host)
    try:
        return await asyncio.create_subprocess_exec(
            *arguments,
            ssh_bootstrap.command(nonce),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=_NOISE_BYTES,
            start_new_session=True,  # Ctrl-C is for the command there, not for the connection
        )
    except FileNotFoundError:
        raise SshMissing(program[0]) from None


async def _bootstrapped(
    address: SshAddress, process: Process, nonce: str, program: HostProgram
) -> None:
    assert process.stdin is not None  # noqa: S101 - both are pipes
    assert process.stdout is not None  # noqa: S101
    greeting = ssh_bootstrap.greeting(
        digest=program.digest, size=len(program.archive), root=address.root
    )
    process.stdin.write(greeting)
    await process.stdout.readuntil(ssh_bootstrap.mark(nonce))
    word = await process.stdout.readexactly(1)
    if word == ssh_bootstrap.SEND:
        process.stdin.write(program.archive)
        await process.stdin.drain()
    elif word == ssh_bootstrap.FAILED:
        length = int.from_bytes(await process.stdout.readexactly(4), "big")
        cause = (await process.stdout.readexactly(length)).decode("utf-8", "replace")
        raise InvalidArgument(
            f"{address.destination} cannot use {address.root}: {cause}.",
            reason="host_root_unusable",
            remedy="End the address in a directory that the account may write.",
        )


def _channel(address: SshAddress, process: Process) -> HostChannel:
    assert process.stdin is not None  # noqa: S101 - both are pipes
    assert process.stdout is not None  # noqa: S101
    return HostChannel(reader=process.stdout, writer=process.stdin, destination=address.destination)


async def _status(process: Process) -> int | None:
    """Give ssh's exit status, None when it does not end by itself."""
    try:
        async with asyncio.timeout(_LEAVING_SECONDS):
            return await process.wait()
    except TimeoutError:
        return None


async def _ended(process: Process) -> None:
    """End ssh, and with it the program on the host, without waiting for the way there and back."""
    if process.stdin is not None:
        process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if await _status(process) is not None:
            return


class _Complaint:
    """The end of what ssh, and the program on the host, write to standard error."""

    def __init__(self) -> None:
        self._kept = bytearray()

    async def listen(self, process: Process) -> None:
        assert process.stderr is not None  # noqa: S101 - it is a pipe
        while chunk := await process.stderr.read(_COMPLAINT_BYTES):
            self._kept += chunk
            del self._kept[:-_COMPLAINT_BYTES]

    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")
