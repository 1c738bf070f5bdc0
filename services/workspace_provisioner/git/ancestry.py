"""Which commits a store already has, as few as a fetch needs to hear of."""

from __future__ import annotations

from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.git.command import Git, GitTimedOut, Place
from workspace_provisioner.sources import ProjectKey

_WALKED = 4096
_NEAR = 64
_STEP = 16
_SECONDS = 5.0


class GitAncestry:
    """The history below the tips of the stores."""

    def __init__(self, *, layout: Layout, git: Git) -> None:
        self._layout = layout
        self._git = git

    async def spaced(self, key: ProjectKey) -> tuple[str, ...]:
        """Return the newest 64 commits and every 16th of the 4096 newest, over all tips."""
        store = self._layout.store(key)
        try:
            walked = await self._git.run(
                "rev-list", f"--max-count={_WALKED}", "--date-order",
                "--glob=refs/fairlead/tips/*",
                place=Place(store),
                seconds=_SECONDS,
            )  # fmt: skip
        except (GitTimedOut, OSError):
            return ()
        if not walked.succeeded:
            return ()
        commits = walked.output.decode("ascii").split()
        return tuple(commits[:_NEAR] + commits[_NEAR::_STEP])
