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

from chassis.limits import check_branch, check_name, check_size
from fairlead_limits import table
from fairlead_limits.refs import broken_ref_rule
from workspace_provisioner.errors import FieldInvalid

DEFAULT_LEASE = timedelta(seconds=table.DEFAULT_LEASE_SECONDS)

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
    """Return the idempotency key; raises LimitBroken."""
    check_name(table.IDEMPOTENCY_KEY, idempotency_key)
    return idempotency_key


def checked_lease(lease: timedelta | None) -> timedelta:
    """Return the lease, 30 minutes when none is asked for; raises LimitBroken."""
    if lease is None:
        return DEFAULT_LEASE
    check_size(table.LEASE, lease.total_seconds())
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
    """Check every part of a source; raises FieldInvalid, BranchInvalid or LimitBroken."""
    checked_tenant(tenant)
    check_name(table.PROJECT, project)
    form = checked_object_format(object_format)
    checked_object_id(commit, form, field="commit")
    if branch:
        check_branch(branch, "source.branch")
    if digest and not _DIGEST.fullmatch(digest):
        raise FieldInvalid(
            "digest", "must be empty or 64 lower-case hexadecimal digits", remedy="Leave it empty."
        )
    if changes is not None:
        checked_object_id(changes.tree, form, field="tree")
        check_size(table.CHANGES_BYTES, len(changes.pack))
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
    check_size(table.TAGS, len(checked))
    check_size(table.TAG_BYTES, sum(len(tag.ref.encode()) for tag in checked))
    if not all(tag.ref.startswith("refs/tags/") for tag in checked):
        raise FieldInvalid("tag", "must be below refs/tags/", remedy="Send tags alone.")
    return checked


def _check_commits(commits: Commits, form: ObjectFormat) -> None:
    check_size(table.AGAINST, len(commits.against))
    for tip in commits.against:
        checked_object_id(tip, form, field="tip")
    check_size(table.COMMITS_BYTES, len(commits.pack))


def checked_tips(tips: Iterable[Tip], object_format: ObjectFormat) -> tuple[Tip, ...]:
    """Check the refs and commits of an upload's tips, raises FieldInvalid and LimitBroken."""
    checked = tuple(tips)
    check_size(table.TIPS, len(checked))
    for tip in checked:
        rule = broken_ref_rule(tip.ref)
        if rule or not tip.ref.startswith("refs/"):
            raise FieldInvalid(
                "tip",
                f"has a ref whose name {rule or 'does not start with refs/'}",
                remedy="Send full names of refs, such as refs/heads/main.",
            )
        checked_object_id(tip.commit, object_format, field="tip")
    return checked
