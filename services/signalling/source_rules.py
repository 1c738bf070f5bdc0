"""The rules for what is checked out: names, object ids and refs that can be carried and that git
allows. Pure.
"""

from __future__ import annotations

import re
from datetime import timedelta

from chassis.errors import InvalidArgument
from signalling.snapshot import (
    NOTICED_BY_CLIENTS,
    Changes,
    Commits,
    MissReason,
    Source,
    Tip,
    Upstream,
)

MAXIMUM_INLINE_PACK_BYTES = 256 * 1024
MAXIMUM_TIPS = 5000
MAXIMUM_REMEMBERED_TIPS = 64
MAXIMUM_TAGS = 256
MAXIMUM_TAGS_BYTES = 32 * 1024
MAXIMUM_URL_LENGTH = 2048
MAXIMUM_AGE = timedelta(hours=24)

_HEX_LENGTHS = {"sha1": 40, "sha256": 64}
_HEX = re.compile(r"[0-9a-f]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_REF_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")
_MAXIMUM_REF_BYTES = 1000
# A ref is a file whose lock has five characters more: `<part>.lock` must fit into 255 bytes.
_MAXIMUM_PART_BYTES = 250


class InvalidRequest(InvalidArgument):
    """A field of a request breaks a rule; `fields["field"]` names it."""

    def __init__(
        self,
        field: str,
        message: str,
        *,
        reason: str,
        remedy: str = "Correct the field and send the request again.",
    ) -> None:
        super().__init__(message, reason=reason, remedy=remedy, fields={"field": field})


def check_source(source: Source) -> None:
    """Raise InvalidRequest unless it names a project, full object ids and valid branches."""
    check_text("source.project", source.project, "project_invalid")
    if not 1 <= len(source.project) <= 200 or _CONTROL.search(source.project):
        raise InvalidRequest(
            "source.project",
            "The project must have 1 to 200 characters and no control characters.",
            reason="project_invalid",
        )
    if source.object_format not in _HEX_LENGTHS:
        raise InvalidRequest(
            "source.object_format",
            "The object format must be sha1 or sha256.",
            reason="object_format_invalid",
        )
    check_object_id("source.commit", source.commit, source.object_format, "commit_invalid")
    if source.branch:
        check_branch("source.branch", source.branch)
    if source.digest and not _DIGEST.fullmatch(source.digest):
        raise InvalidRequest(
            "source.digest",
            "The digest must be 64 lower-case hexadecimal digits, or empty.",
            reason="digest_invalid",
        )
    if source.changes is not None:
        _check_changes(source.changes, source.object_format)
    if source.commits is not None:
        _check_commits(source.commits, source.object_format)
    if source.upstream is not None:
        _check_upstream(source.upstream)
        if source.changes is not None:
            raise InvalidRequest(
                "source.changes",
                "Uncommitted changes belong to the client's commit, not to the upstream's tip.",
                reason="upstream_with_changes",
                remedy="Leave the changes at home, or launch the local commit.",
            )
    if source.origin:
        _check_address("source.origin", source.origin)
    _check_tags(source.tags, source.object_format)
    if not NOTICED_BY_CLIENTS.issuperset(source.noticed):
        raise InvalidRequest(
            "source.noticed",
            "Only what a client can notice itself belongs here.",
            reason="noticed_invalid",
        )


def noticed_reason(text: str) -> MissReason:
    """Return the reason of that name; raises InvalidRequest when there is none."""
    try:
        return MissReason(text)
    except ValueError:
        raise InvalidRequest(
            "source.noticed", "There is no such miss reason.", reason="noticed_invalid"
        ) from None


def _check_commits(commits: Commits, object_format: str) -> None:
    if len(commits.against) > MAXIMUM_REMEMBERED_TIPS:
        raise InvalidRequest(
            "source.commits.against",
            "The pack of commits is thin against at most 64 tips.",
            reason="too_many_tips",
        )
    for tip in commits.against:
        check_object_id("source.commits.against", tip, object_format, "tip_invalid")
    if len(commits.pack) > MAXIMUM_INLINE_PACK_BYTES:
        raise InvalidRequest(
            "source.commits.pack",
            "The pack of commits is larger than 256 KiB.",
            reason="commits_too_large",
            remedy="Leave the commits out; the answer asks for an upload.",
        )


def _check_upstream(upstream: Upstream) -> None:
    _check_address("source.upstream.url", upstream.url)
    check_branch("source.upstream.branch", upstream.branch)
    if upstream.max_age is not None and not timedelta(0) <= upstream.max_age <= MAXIMUM_AGE:
        raise InvalidRequest(
            "source.upstream.max_age",
            "The age must be between 0 seconds and 24 hours.",
            reason="max_age_invalid",
        )


def _check_address(field: str, url: str) -> None:
    """Refuse what is no address of an origin, and what holds credentials: requests are kept."""
    check_text(field, url, "upstream_invalid")
    scheme, _, rest = url.partition("://")
    if scheme not in ("https", "ssh") or len(url) > MAXIMUM_URL_LENGTH:
        raise InvalidRequest(
            field,
            "The upstream must be an https:// or ssh:// address.",
            reason="upstream_invalid",
            remedy="Set the repository's `origin` to one, or launch the local commit.",
        )
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if at and (scheme == "https" or ":" in user):
        raise InvalidRequest(
            field,
            "The address of the upstream must not hold credentials.",
            reason="upstream_invalid",
            remedy="Leave them out: the host has a place for each tenant's credentials.",
        )


def _check_changes(changes: Changes, object_format: str) -> None:
    check_object_id("source.changes.tree", changes.tree, object_format, "tree_invalid")
    if len(changes.pack) > MAXIMUM_INLINE_PACK_BYTES:
        raise InvalidRequest(
            "source.changes.pack",
            "The pack of the changes is larger than 256 KiB.",
            reason="changes_too_large",
            remedy="Send the tree without the pack; the launch asks for an upload.",
        )


def check_branch(field: str, branch: str) -> None:
    """Raise InvalidRequest unless git takes `branch` as a branch name (git-check-ref-format(1),
    --branch).
    """
    check_text(field, branch, "branch_invalid")
    if branch in ("@", "HEAD") or branch.startswith("-") or not is_ref(branch):
        raise InvalidRequest(
            field,
            "The branch is not a name that git allows.",
            reason="branch_invalid",
            remedy="See `git check-ref-format`: no `..`, spaces, `~^:?*[\\`, or a hyphen in front.",
        )
    if is_long_ref(branch):
        raise InvalidRequest(
            field,
            f"The branch has more than {_MAXIMUM_REF_BYTES} bytes, or more than "
            f"{_MAXIMUM_PART_BYTES} between slashes, the most that a host's file names hold.",
            reason="branch_invalid",
            remedy="Choose a shorter name.",
        )


def is_long_ref(name: str) -> bool:
    """Say whether a ref's name is longer than file systems take."""
    parts = name.encode().split(b"/")
    return len(name.encode()) > _MAXIMUM_REF_BYTES or max(map(len, parts)) > _MAXIMUM_PART_BYTES


def is_ref(name: str) -> bool:
    """Say whether git takes `name` as (part of) a ref name."""
    return not (
        not name
        or _REF_FORBIDDEN.search(name)
        or name.startswith("/")
        or name.endswith(("/", "."))
        or any(part.startswith(".") or part.endswith(".lock") for part in name.split("/"))
    )


def check_tips(tips: tuple[Tip, ...], object_format: str) -> None:
    """Raise InvalidRequest unless every tip is a ref under refs/ with a full object id."""
    if len(tips) > MAXIMUM_TIPS:
        raise InvalidRequest(
            "tips", f"An upload names at most {MAXIMUM_TIPS} tips.", reason="too_many_tips"
        )
    for tip in tips:
        check_text("tips.ref", tip.ref, "tip_invalid")
        if not tip.ref.startswith("refs/") or not is_ref(tip.ref) or is_long_ref(tip.ref):
            raise InvalidRequest(
                "tips.ref",
                "A tip must be the full name of a ref, such as refs/heads/main.",
                reason="tip_invalid",
            )
        check_object_id("tips.commit", tip.commit, object_format, "tip_invalid")


def _check_tags(tags: tuple[Tip, ...], object_format: str) -> None:
    check_tips(tags, object_format)
    if not all(tag.ref.startswith("refs/tags/") for tag in tags):
        raise InvalidRequest("source.tags", "A tag is below refs/tags/.", reason="tag_invalid")
    size = sum(len(tag.ref.encode()) for tag in tags)
    if len(tags) > MAXIMUM_TAGS or size > MAXIMUM_TAGS_BYTES:
        raise InvalidRequest(
            "source.tags",
            "A launch brings at most 256 tags, whose names take at most 32 KiB.",
            reason="too_many_tags",
            remedy="Send fewer; an upload takes the rest.",
        )


def check_object_id(field: str, text: str, object_format: str, reason: str) -> None:
    """Raise InvalidRequest unless `text` is a full object id of the format."""
    if len(text) != _HEX_LENGTHS[object_format] or not _HEX.fullmatch(text):
        raise InvalidRequest(
            field,
            f"An object id of {object_format} is {_HEX_LENGTHS[object_format]} lower-case "
            "hexadecimal digits.",
            reason=reason,
        )


def check_text(field: str, text: str, reason: str) -> None:
    """Refuse what no file system, program or UTF-8 message can carry: NUL and lone surrogates."""
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidRequest(
            field, "The text holds a character that cannot be carried.", reason=reason
        )
