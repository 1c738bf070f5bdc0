"""What a client wants checked out: project, commit, branch and changes, checked before anything
else sees them.

Nothing that leaves this module can be taken by git as an option or by the file system as a path.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from workspace_provisioner.branches import checked_branch, checked_ref
from workspace_provisioner.errors import ChangesTooLarge, CommitsTooLarge, FieldInvalid

INLINE_PACK_BYTES = 256 * 1024
LONGEST_LEASE = timedelta(hours=24)
DEFAULT_LEASE = timedelta(minutes=30)
MOST_TIPS = 5000
MOST_AGAINST = 64
MOST_TAGS = 256
MOST_TAGS_BYTES = 32 * 1024

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ObjectFormat(StrEnum):
    """The hash that names a repository's objects."""

    SHA1 = "sha1"
    SHA256 = "sha256"

    @property
    def digits(self) -> int:
        """Length of an object id in hexadecimal digits."""
        return 40 if self is ObjectFormat.SHA1 else 64


@dataclass(frozen=True, slots=True)
class ProjectKey:
    """Whose objects of which project; every key has its own store, so tenants never share an
    object.
    """

    tenant: str
    project: str
    object_format: ObjectFormat

    @property
    def digest(self) -> str:
        """Return the first 32 hexadecimal digits of the project's SHA-256: safe in a path and in
        a key.
        """
        return hashlib.sha256(self.project.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Changes:
    """Uncommitted and untracked files: a tree, and the pack that brings it when it is small."""

    tree: str
    pack: bytes


@dataclass(frozen=True, slots=True)
class Commits:
    """Commits that travel with a request: a thin pack, and the host's tips that it is thin
    against.
    """

    against: tuple[str, ...]
    pack: bytes


@dataclass(frozen=True, slots=True)
class Tip:
    """A ref of the client and its commit."""

    ref: str
    commit: str


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a project comes from, as the host reaches it, and how old the host's knowledge of
    `branch` may be.
    """

    url: str
    branch: str
    max_age: timedelta


@dataclass(frozen=True, slots=True)
class Source:
    """A checked source. `noticed` are reasons (see MissReason) that the client gives for what it
    did not do itself; `tags` are new at the client.
    """

    key: ProjectKey
    commit: str
    branch: str
    digest: str
    changes: Changes | None
    commits: Commits | None = None
    upstream: Upstream | None = None
    noticed: tuple[str, ...] = ()
    submodules: bool = False
    origin: str = ""
    tags: tuple[Tip, ...] = ()


def checked_tenant(tenant: str) -> str:
    """Return the tenant when it can name a directory; raises FieldInvalid."""
    if not _TENANT.fullmatch(tenant):
        raise FieldInvalid(
            "tenant",
            "must be 1 to 64 letters, digits, '_' or '-'",
            remedy="Correct the API key's tenant.",
        )
    return tenant


def checked_key(idempotency_key: str) -> str:
    """Return the idempotency key, 1 to 200 printable characters; raises FieldInvalid."""
    if not 1 <= len(idempotency_key) <= 200 or not idempotency_key.isprintable():
        raise FieldInvalid(
            "idempotency_key",
            "must be 1 to 200 printable characters",
            remedy="Send a random key with each new workspace and the same one with a retry.",
        )
    return idempotency_key


def checked_lease(lease: timedelta | None) -> timedelta:
    """Return the lease, at most 24 hours; 30 minutes when none is asked; raises FieldInvalid."""
    if lease is None:
        return DEFAULT_LEASE
    if not timedelta() < lease <= LONGEST_LEASE:
        raise FieldInvalid(
            "lease",
            "must be positive and at most 24 hours",
            remedy="Ask for less, and renew it.",
        )
    return lease


def checked_object_format(name: str) -> ObjectFormat:
    """Return the object format; sha1 when the name is empty. Raises FieldInvalid."""
    try:
        return ObjectFormat(name or "sha1")
    except ValueError:
        raise FieldInvalid(
            "object_format", "must be 'sha1' or 'sha256'", remedy="Send what the repository uses."
        ) from None


def checked_object_id(text: str, object_format: ObjectFormat, *, field: str) -> str:
    """Return a full object id in lower-case hexadecimal; raises FieldInvalid for anything else."""
    digits = object_format.digits
    if not re.fullmatch(rf"[0-9a-f]{{{digits}}}", text):
        raise FieldInvalid(
            field,
            f"must be a full object id of {digits} lower-case hexadecimal digits",
            remedy="Send what `git rev-parse` prints.",
        )
    return text


def checked_source(
    *,
    tenant: str,
    project: str,
    object_format: str,
    commit: str,
    branch: str,
    digest: str,
    changes: Changes | None,
    commits: Commits | None = None,
    noticed: Iterable[str] = (),
    tags: Iterable[Tip] = (),
) -> Source:
    """Check every part of a source; raises FieldInvalid, BranchInvalid or ChangesTooLarge."""
    checked_tenant(tenant)
    if not 1 <= len(project) <= 200 or not project.isprintable():
        raise FieldInvalid(
            "project",
            "must be 1 to 200 printable characters",
            remedy="Leave it to the client, which uses the id of the root commit.",
        )
    form = checked_object_format(object_format)
    checked_object_id(commit, form, field="commit")
    if branch:
        checked_branch(branch)
    if digest and not _DIGEST.fullmatch(digest):
        raise FieldInvalid(
            "digest", "must be empty or 64 lower-case hexadecimal digits", remedy="Leave it empty."
        )
    if changes is not None:
        checked_object_id(changes.tree, form, field="changes_tree")
        if len(changes.pack) > INLINE_PACK_BYTES:
            raise ChangesTooLarge(size=len(changes.pack), limit=INLINE_PACK_BYTES)
    if commits is not None:
        _check_commits(commits, form)
    return Source(
        ProjectKey(tenant, project, form),
        commit,
        branch,
        digest,
        changes,
        commits=commits,
        noticed=tuple(dict.fromkeys(noticed)),
        tags=_checked_tags(tags, form),
    )


def _checked_tags(tags: Iterable[Tip], form: ObjectFormat) -> tuple[Tip, ...]:
    checked = checked_tips(tags, form)
    size = sum(len(tag.ref.encode()) for tag in checked)
    if len(checked) > MOST_TAGS or size > MOST_TAGS_BYTES:
        raise FieldInvalid(
            "tags",
            f"are more than {MOST_TAGS}, or their names longer than {MOST_TAGS_BYTES} bytes",
            remedy="Send fewer; an upload takes the rest.",
        )
    if not all(tag.ref.startswith("refs/tags/") for tag in checked):
        raise FieldInvalid("tags", "must be below refs/tags/", remedy="Send tags alone.")
    return checked


def _check_commits(commits: Commits, form: ObjectFormat) -> None:
    if len(commits.against) > MOST_AGAINST:
        raise FieldInvalid(
            "commits", f"are thin against more than {MOST_AGAINST} tips", remedy="Name fewer."
        )
    for tip in commits.against:
        checked_object_id(tip, form, field="commits")
    if len(commits.pack) > INLINE_PACK_BYTES:
        raise CommitsTooLarge(size=len(commits.pack), limit=INLINE_PACK_BYTES)


def checked_tips(tips: Iterable[Tip], object_format: ObjectFormat) -> tuple[Tip, ...]:
    """Check the refs and commits of an upload's tips, at most 5000; raises FieldInvalid."""
    checked = tuple(tips)
    if len(checked) > MOST_TIPS:
        raise FieldInvalid(
            "tip", f"list has more than {MOST_TIPS} entries", remedy="Send fewer heads."
        )
    for tip in checked:
        checked_ref(tip.ref)
        checked_object_id(tip.commit, object_format, field="tip")
    return checked
