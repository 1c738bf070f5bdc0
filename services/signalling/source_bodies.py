"""What a caller says of the repository, in JSON, and what is said of its upstream."""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import Field

from signalling.rest_types import AgeSeconds, Answer, Body, EncodedBytes
from signalling.snapshot import (
    NOTICED_BY_CLIENTS,
    Changes,
    Commits,
    Source,
    Tip,
    Upstream,
)
from signalling.source_rules import noticed_reason


class ChangesBody(Body):
    """Uncommitted and untracked files as a tree, with a small thin pack of what is new in it."""

    tree: str = Field(description="Object id of the tree.")
    pack: EncodedBytes = Field(
        default=b"", description="Thin pack against the commit, at most 256 KiB."
    )

    def value(self) -> Changes:
        """Return the domain's value."""
        return Changes(tree=self.tree, pack=self.pack)


class CommitsBody(Body):
    """New commits since tips that the host had, as a small thin pack."""

    against: list[str] = Field(description="Commits that the pack is thin against, at most 64.")
    pack: EncodedBytes = Field(description="Thin pack that makes the commit whole.")

    def value(self) -> Commits:
        """Return the domain's value."""
        return Commits(against=tuple(self.against), pack=self.pack)


class UpstreamBody(Body):
    """Where the project comes from; its branch's tip is wanted in place of the commit."""

    url: str = Field(description="`https://…` or `ssh://…`.")
    branch: str
    max_age: AgeSeconds | None = Field(
        default=None, description="Seconds that the host's knowledge may be old; 30 when null."
    )

    def value(self) -> Upstream:
        """Return the domain's value."""
        age = None if self.max_age is None else timedelta(seconds=self.max_age)
        return Upstream(url=self.url, branch=self.branch, max_age=age)


class TagBody(Body):
    """A tag that is new at the client."""

    ref: str = Field(description="Full name, such as `refs/tags/v1`.")
    commit: str = Field(description="Object id that it names.")

    def value(self) -> Tip:
        """Return the domain's value."""
        return Tip(self.ref, self.commit)


class SourceBody(Body):
    """What to check out."""

    project: str = Field(description="The caller's name for the project, 1 to 200 characters.")
    commit: str = Field(description="Full object id of the wanted commit.")
    object_format: str = Field(
        default="sha1", description="Object format.", json_schema_extra={"enum": ["sha1", "sha256"]}
    )
    branch: str = Field(default="", description="Branch at the client; empty when detached.")
    digest: str = Field(default="", description="Digest of the local heads; may be empty.")
    changes: ChangesBody | None = None
    commits: CommitsBody | None = None
    upstream: UpstreamBody | None = None
    noticed: list[str] = Field(
        default_factory=list,
        description="What the client could not do itself.",
        json_schema_extra={"items": {"type": "string", "enum": [*sorted(NOTICED_BY_CLIENTS)]}},
    )
    submodules: bool = Field(default=False, description="Fetch and check out submodules.")
    origin: str = Field(
        default="", description="Address of the client's origin; relative submodules start there."
    )
    tags: list[TagBody] = Field(
        default_factory=list, description="Tags that are new since the last launch, at most 256."
    )

    def value(self) -> Source:
        """Return the domain's value."""
        return Source(
            project=self.project,
            commit=self.commit,
            object_format=self.object_format or "sha1",
            branch=self.branch,
            digest=self.digest,
            changes=None if self.changes is None else self.changes.value(),
            commits=None if self.commits is None else self.commits.value(),
            upstream=None if self.upstream is None else self.upstream.value(),
            noticed=tuple(noticed_reason(text) for text in self.noticed),
            submodules=self.submodules,
            origin=self.origin,
            tags=tuple(tag.value() for tag in self.tags),
        )


class FreshnessAnswer(Answer):
    """How an upstream's tip was found; `reason` says why the client's own commit was taken."""

    branch: str
    as_of: datetime | None
    fallback: bool
    reason: str
