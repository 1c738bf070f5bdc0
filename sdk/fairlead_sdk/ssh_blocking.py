"""The blocking client of a host over SSH: the asynchronous one, call by call."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType

from fairlead_sdk.commands import CommandResult
from fairlead_sdk.loop_thread import LoopThread
from fairlead_sdk.ssh_host import AsyncSshHost, AsyncSshLaunch, HostWorkspace


class SshLaunch:
    """A workspace on a host over SSH, and commands in it."""

    def __init__(self, *, loop: LoopThread, launch: AsyncSshLaunch) -> None:
        self._loop = loop
        self._launch = launch

    @property
    def workspace(self) -> HostWorkspace:
        """The workspace."""
        return self._launch.workspace

    def run(
        self,
        command: str | Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Run a command to its end; see `AsyncSshLaunch.run`."""
        return self._loop.run(
            self._launch.run(
                command,
                environment=environment,
                directory=directory,
                stdin=stdin,
                timeout=timeout,
                check=check,
            )
        )


class SshHost:
    """One host over SSH, `ssh://user@host[:port]/directory`; use as a context manager.

    One connection is kept while the block lasts. FAIRLEAD_SSH names another program than `ssh`.
    """

    def __init__(self, address: str) -> None:
        self._host = AsyncSshHost(address)
        self._stack = ExitStack()

    def __enter__(self) -> SshHost:
        with ExitStack() as stack:
            self._loop = LoopThread()
            stack.callback(self._loop.close)
            stack.enter_context(self._loop.entered(self._host))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    @contextmanager
    def launch(
        self,
        path: str | os.PathLike[str] = ".",
        *,
        branch: str = "",
        clean: bool = False,
        from_: str = "",
        submodules: bool = False,
        keep: bool = False,
    ) -> Iterator[SshLaunch]:
        """Launch the repository around `path`; see `AsyncSshHost.launch`."""
        context = self._host.launch(
            path, branch=branch, clean=clean, from_=from_, submodules=submodules, keep=keep
        )
        with self._loop.entered(context) as launch:
            yield SshLaunch(loop=self._loop, launch=launch)

    def workspaces(self) -> tuple[HostWorkspace, ...]:
        """List the workspaces on the host."""
        return self._loop.run(self._host.workspaces())

    def release(self, workspace_id: str) -> bool:
        """Give a workspace back; says whether there was one."""
        return self._loop.run(self._host.release(workspace_id))
