"""The rules for what is checked out: names, object ids and refs that can be carried and that git
allows. Pure.
"""

from __future__ import annotations

import re

from chassis.errors import InvalidArgument
from chassis.limits import check_branch, check_name, check_size
from fairlead_limits import table
from fairlead_limits.refs import broken_ref_rule
from signalling.snapshot import (
    NOTICED_BY_CLIENTS,
    Changes,
    Commits,
    MissReason,
    Source,
    Tip,
    Upstream,
)

_HEX_LENGTHS = {"sha1": 40, "sha256": 64}
_HEX = re.compile(r"[0-9a-f]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")


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
    check_name(table.PROJECT, source.project)
    if source.object_format not in _HEX_LENGTHS:
        raise InvalidRequest(
            "source.object_format",
            "The object format must be sha1 or sha256.",
            reason="object_format_invalid",
        )
    check_object_id("source.commit", source.commit, source.object_format, "commit_invalid")
    if source.branch:
        check_branch(source.branch, "source.branch")
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
    check_size(table.AGAINST, len(commits.against))
    for tip in commits.against:
        check_object_id("source.commits.against", tip, object_format, "tip_invalid")
    check_size(table.COMMITS_BYTES, len(commits.pack))


def _check_upstream(upstream: Upstream) -> None:
    _check_address("source.upstream.url", upstream.url)
    check_branch(upstream.branch, "source.upstream.branch")
    if upstream.max_age is not None:
        check_size(table.MAX_AGE, upstream.max_age.total_seconds())


def _check_address(field: str, url: str) -> None:
    """Refuse what is no address of an origin, and what holds credentials: requests are kept."""
    check_text(field, url, "origin_invalid")
    check_size(table.ADDRESS, len(url), field)
    scheme, _, rest = url.partition("://")
    if scheme not in ("https", "ssh"):
        raise InvalidRequest(
            field,
            "The upstream must be an https:// or ssh:// address.",
            reason="origin_invalid",
            remedy="Set the repository's `origin` to one, or launch the local commit.",
        )
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if at and (scheme == "https" or ":" in user):
        raise InvalidRequest(
            field,
            "The address of the upstream must not hold credentials.",
            reason="origin_invalid",
            remedy="Leave them out: the host has a place for each tenant's credentials.",
        )


def _check_changes(changes: Changes, object_format: str) -> None:
    check_object_id("source.changes.tree", changes.tree, object_format, "tree_invalid")
    check_size(table.CHANGES_BYTES, len(changes.pack))


def check_tips(tips: tuple[Tip, ...], object_format: str) -> None:
    """Raise InvalidRequest unless every tip is a ref under refs/ with a full object id."""
    check_size(table.TIPS, len(tips))
    for tip in tips:
        rule = broken_ref_rule(tip.ref)
        if rule or not tip.ref.startswith("refs/"):
            raise InvalidRequest(
                "tips.ref",
                f"The name of the ref {rule or 'does not start with refs/'}.",
                reason="tip_invalid",
                remedy="Send full names of refs, such as refs/heads/main.",
            )
        check_object_id("tips.commit", tip.commit, object_format, "tip_invalid")


def _check_tags(tags: tuple[Tip, ...], object_format: str) -> None:
    check_tips(tags, object_format)
    if not all(tag.ref.startswith("refs/tags/") for tag in tags):
        raise InvalidRequest("source.tags", "A tag is below refs/tags/.", reason="tag_invalid")
    check_size(table.TAGS, len(tags))
    check_size(table.TAG_BYTES, sum(len(tag.ref.encode()) for tag in tags))


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
