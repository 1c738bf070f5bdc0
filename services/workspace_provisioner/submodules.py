"""Initialises the submodules of a workspace that is being made, each from its own origin, within
limits of time, number, depth and bytes. What fails is fatal to the workspace.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from workspace_provisioner.errors import FieldInvalid
from workspace_provisioner.gitmodules import Submodule
from workspace_provisioner.origin_errors import SubmodulesTooLarge, SubmoduleUnavailable
from workspace_provisioner.origin_ports import SubmoduleTrees
from workspace_provisioner.origins import Origin, OriginFailed, OriginFault, checked_origin
from workspace_provisioner.ports import ObjectsLacking
from workspace_provisioner.sources import ProjectKey, Source
from workspace_provisioner.upstreams import OriginFetch
from workspace_provisioner.workspaces import PlacedSubmodule


@dataclass(frozen=True, slots=True)
class SubmoduleLimits:
    """Seconds for each one, how many in all, how deep they nest, bytes fetched in all."""

    seconds: float = 60.0
    count: int = 64
    depth: int = 4
    bytes: int = 2 * 1024**3


@dataclass(slots=True)
class _Spent:
    count: int = 0
    bytes: int = 0
    placed: list[PlacedSubmodule] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Super:
    """A commit whose submodules are wanted; `path` and `names` lead to it from the workspace."""

    key: ProjectKey
    commit: str
    origin: Origin | None
    path: str = ""
    names: tuple[str, ...] = ()


class Submodules:
    """The submodules of workspaces. Their objects stay in stores of the tenant's own, so that only
    the first launch of a recorded commit fetches. Writing files takes one of the host's `slots`.
    """

    def __init__(
        self,
        *,
        fetch: OriginFetch,
        trees: SubmoduleTrees,
        limits: SubmoduleLimits,
        slots: asyncio.Semaphore,
    ) -> None:
        self._fetch = fetch
        self._trees = trees
        self._limits = limits
        self._slots = slots

    async def initialise(self, workspace_id: str, source: Source) -> tuple[PlacedSubmodule, ...]:
        """Write the files of all submodules of the source's commit into a workspace that nobody
        uses yet, and return them.

        Raises SubmodulesInvalid, SubmoduleUnavailable, SubmodulesTooLarge, HostFull and OSError.
        """
        url = source.upstream.url if source.upstream else source.origin
        top = _Super(source.key, source.commit, checked_origin(url) if url else None)
        spent = _Spent()
        await self._descend(workspace_id, top, spent)
        return tuple(spent.placed)

    async def _descend(self, workspace_id: str, above: _Super, spent: _Spent) -> None:
        declared = await self._trees.declared(above.key, above.commit)
        if declared and len(above.names) >= self._limits.depth:
            raise SubmodulesTooLarge(f"they nest deeper than {self._limits.depth}")
        spent.count += len(declared)
        if spent.count > self._limits.count:
            raise SubmodulesTooLarge(f"there are more than {self._limits.count}")
        placed = [
            (submodule, recorded, _origin_of(above, submodule)) for submodule, recorded in declared
        ]
        if placed:
            await self._trees.register(
                workspace_id,
                above.key,
                above.path,
                above.names,
                [(submodule, origin) for submodule, _, origin in placed],
            )
        for submodule, recorded, origin in placed:
            key = ProjectKey(above.key.tenant, f"submodule {origin.text}", above.key.object_format)
            path = _below(above, submodule)
            below = _Super(key, recorded, origin, path, (*above.names, submodule.name))
            await self._bring(below, spent)
            try:
                async with self._slots:
                    await self._trees.check_out(workspace_id, key, recorded, path, below.names)
            except ObjectsLacking as error:
                raise SubmoduleUnavailable(
                    path, "missing_objects", detail="objects of it are lacking on this host"
                ) from error
            except FileExistsError as error:
                raise SubmoduleUnavailable(
                    path, "path_taken", detail="its place in the tree is taken"
                ) from error
            spent.placed.append(PlacedSubmodule(path, below.names, key.project, recorded))
            await self._descend(workspace_id, below, spent)

    async def _bring(self, wanted: _Super, spent: _Spent) -> None:
        origin = wanted.origin
        assert origin is not None  # noqa: S101 - a submodule has one
        left = self._limits.bytes - spent.bytes
        if left <= 0:
            raise SubmodulesTooLarge(f"they have more than {self._limits.bytes} bytes")
        try:
            async with asyncio.timeout(self._limits.seconds):
                spent.bytes += await self._fetch.bring_from(
                    origin, wanted.key, wanted.commit, limit=left
                )
        except TimeoutError as error:
            raise SubmoduleUnavailable(
                wanted.path, OriginFault.TIMEOUT, detail="fetching it took too long"
            ) from error
        except OriginFailed as failure:
            raise SubmoduleUnavailable(
                wanted.path, failure.fault, detail=_SENTENCES[failure.fault]
            ) from failure


_SENTENCES = {
    OriginFault.TIMEOUT: "its origin does not answer in time",
    OriginFault.UNREACHABLE: "its origin cannot be reached",
    OriginFault.DENIED: "this host does not dial or trust its origin",
    OriginFault.BRANCH_MISSING: "its origin lacks the branch",
    OriginFault.UNAUTHORIZED: "its origin asks for credentials that the host does not have",
    OriginFault.REDIRECTED: "its origin redirects to another place",
    OriginFault.MALFORMED: "what its origin sent was refused",
    OriginFault.COMMIT_MISSING: "its origin lacks the recorded commit",
}


def _below(above: _Super, submodule: Submodule) -> str:
    return f"{above.path}/{submodule.path}" if above.path else submodule.path


def _origin_of(above: _Super, submodule: Submodule) -> Origin:
    """Return where a submodule comes from; a relative URL starts from its super-project's."""
    path = _below(above, submodule)
    try:
        if above.origin is not None:
            return above.origin.related(submodule.url)
        if submodule.url.startswith(("./", "../")):
            raise SubmoduleUnavailable(
                path, "origin_unknown", detail="its url is relative, and no origin was named"
            )
        return checked_origin(submodule.url)
    except FieldInvalid as error:
        raise SubmoduleUnavailable(
            path, error.reason, detail="its url is not one that a host fetches from"
        ) from error
