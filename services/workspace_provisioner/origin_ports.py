"""What fetching from origins needs from the outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from workspace_provisioner.gitmodules import Submodule
from workspace_provisioner.origins import Origin
from workspace_provisioner.sources import ObjectFormat, ProjectKey, Source, Tip, Upstream
from workspace_provisioner.workspaces import PlacedSubmodule, Snapshot


@dataclass(frozen=True, slots=True)
class Sighting:
    """What an origin said: the tip of a branch, and when it was asked. Without a commit the branch
    is gone, and `as_of` is when it was last there.
    """

    commit: str
    as_of: datetime


class Sightings(Protocol):
    """What origins said last, for each project key and upstream."""

    async def get(self, key: ProjectKey, upstream: Upstream) -> Sighting | None:
        """Return what is remembered."""
        ...

    async def put(self, key: ProjectKey, upstream: Upstream, sighting: Sighting) -> None:
        """Remember; raises OSError when it could only be remembered until the end of the room."""
        ...


class Talk(Protocol):
    """A conversation with an origin. Both raise OriginFailed."""

    async def tip(self, branch: str) -> str:
        """Return the commit that a branch names now."""
        ...

    def pack(self, commit: str, having: Sequence[str]) -> AsyncIterator[bytes]:
        """Yield a thin pack with the commit and all that it reaches and `having` do not."""
        ...


class Origins(Protocol):
    """The places that projects come from."""

    def talk(
        self, tenant: str, origin: Origin, object_format: ObjectFormat
    ) -> AbstractAsyncContextManager[Talk]:
        """Begin a conversation with a tenant's own credentials; raises OriginFailed."""
        ...


class Known(Protocol):
    """What is whole in the stores; see Stores."""

    async def holds(self, key: ProjectKey) -> bool:
        """Say whether there is a store for the key."""
        ...

    async def knows(self, key: ProjectKey, commit: str) -> bool:
        """Say whether the commit is reachable from the key's durable tips."""
        ...


class Intake(Protocol):
    """Where what came from an origin goes; see Importer."""

    async def receive(
        self, source: Source, tips: tuple[Tip, ...], chunks: AsyncIterator[bytes]
    ) -> Snapshot:
        """Take a pack in that makes the source's commit whole; raises what an upload raises."""
        ...


class Ancestry(Protocol):
    """The history in a store."""

    async def spaced(self, key: ProjectKey) -> tuple[str, ...]:
        """Return some hundred commits that are whole: the newest ones, then ever fewer."""
        ...


class SubmoduleSetup(Protocol):
    """What making a workspace needs of submodules; see Submodules."""

    async def initialise(self, workspace_id: str, source: Source) -> tuple[PlacedSubmodule, ...]:
        """Write the files of all submodules into a workspace that nobody uses yet, and return
        them.
        """
        ...


class SubmoduleTrees(Protocol):
    """The files of submodules inside workspaces that are being made. `path` leads from the top of
    the workspace to a submodule, `names` are those of the submodules on the way, its own last.
    """

    async def declared(self, key: ProjectKey, commit: str) -> tuple[tuple[Submodule, str], ...]:
        """Return the submodules of a commit, each with the commit that is recorded for it.

        Raises SubmodulesInvalid.
        """
        ...

    async def register(
        self,
        workspace_id: str,
        key: ProjectKey,
        path: str,
        names: tuple[str, ...],
        submodules: Sequence[tuple[Submodule, Origin]],
    ) -> None:
        """Name submodules and their origins in the configuration of their super-project."""
        ...

    async def check_out(
        self, workspace_id: str, key: ProjectKey, commit: str, path: str, names: tuple[str, ...]
    ) -> None:
        """Write a submodule's files, with a git directory of its own that borrows objects.

        Raises FileExistsError where its place is taken, ObjectsLacking, CheckoutFailed, OSError.
        """
        ...
