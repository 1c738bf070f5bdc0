"""What origins told, as files beside the store that they belong to, with a copy in memory."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from pathlib import Path

from workspace_provisioner.disk.layout import Layout, write_whole
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.origin_ports import Sighting
from workspace_provisioner.sources import ProjectKey, Upstream

_MOST_KEPT = 10_000


class SightingFiles:
    """One small file for each project key and upstream; losing one costs a fetch."""

    def __init__(self, *, layout: Layout, files: FileWork) -> None:
        self._layout = layout
        self._files = files
        self._kept: dict[tuple[ProjectKey, str, str], Sighting] = {}

    async def get(self, key: ProjectKey, upstream: Upstream) -> Sighting | None:
        name = (key, upstream.url, upstream.branch)
        found = self._kept.get(name)
        if found is None:
            found = await self._files.run(_read, self._path(key, upstream))
            if found is not None:
                self._keep(name, found)
        return found

    async def put(self, key: ProjectKey, upstream: Upstream, sighting: Sighting) -> None:
        self._keep((key, upstream.url, upstream.branch), sighting)
        content = json.dumps(
            {
                "url": upstream.url,
                "branch": upstream.branch,
                "commit": sighting.commit,
                "as_of": sighting.as_of.isoformat(),
            }
        ).encode()
        await self._files.run(_write, self._path(key, upstream), content)

    def _keep(self, name: tuple[ProjectKey, str, str], sighting: Sighting) -> None:
        if len(self._kept) >= _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[name] = sighting

    def _path(self, key: ProjectKey, upstream: Upstream) -> Path:
        name = hashlib.sha256(f"{upstream.url}\n{upstream.branch}".encode()).hexdigest()[:32]
        return self._layout.store(key) / "upstreams" / f"{name}.json"


def _read(path: Path) -> Sighting | None:
    try:
        record = json.loads(path.read_bytes())
        return Sighting(str(record["commit"]), datetime.fromisoformat(record["as_of"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(path, content)
