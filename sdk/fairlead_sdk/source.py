"""The source that a launch or a workspace is made of, as the front door takes it."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Sequence

from fairlead_sdk.errors import RepositoryError
from fairlead_sdk.git import GitFailed
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.known_tags import known_tags, merged_tags, unsent_tags
from fairlead_sdk.known_tips import KnownTips
from fairlead_sdk.packs import Commits, pack_commits
from fairlead_sdk.repository import Repository, Tip


def source_document(repository: Repository, *, url: str) -> JsonObject:
    """Give the JSON form, with the commits and tags that are new since what the front door at `url`
    is known to have.

    It runs git when there are some. Tags that do not fit wait for the next launch or an upload.
    """
    source: JsonObject = {
        "project": repository.project,
        "object_format": repository.object_format,
        "commit": repository.commit,
        "branch": repository.branch,
        "digest": repository.digest,
    }
    if repository.changes is not None:
        pack = base64.b64encode(repository.changes.pack).decode("ascii")
        source["changes"] = {"tree": repository.changes.tree, "pack": pack}
    noticed = list(repository.noticed)
    try:
        commits, tags = _new(repository, url)
    except RepositoryError as error:  # the upload that follows says what to do about it
        noticed.append(error.reason)
    else:
        if tags:
            source["tags"] = [{"ref": tag.ref, "commit": tag.commit} for tag in tags]
        if commits is not None:
            pack = base64.b64encode(commits.pack).decode("ascii")
            source["commits"] = {"against": list(commits.against), "pack": pack}
    if noticed:
        source["noticed"] = list(noticed)
    return source


def _new(repository: Repository, url: str) -> tuple[Commits | None, Sequence[Tip]]:
    known = known_tips(repository, url=url)
    if not known.commits:
        return _tags_of_first_launch(repository, url)
    tags: Sequence[Tip] = ()
    tags_there = known_tags(repository, url=url)
    if not known.lacks_history:  # else they come with it
        with contextlib.suppress(GitFailed):  # a tag is broken; uploads say so
            tags = unsent_tags(repository, tags_there)
    commits = pack_commits(repository, known.commits, tags=tags)
    if commits is None and tags:
        # Too much: tags of other lines of history wait for an upload, which brings all there are.
        here = merged_tags(repository, tags)
        tags_there.learn({tag.ref: tag.commit for tag in tags if tag not in here})
        commits, tags = pack_commits(repository, known.commits, tags=here), here
        if commits is None:
            return pack_commits(repository, known.commits), ()
    return commits, tags


def _tags_of_first_launch(repository: Repository, url: str) -> tuple[Commits | None, Sequence[Tip]]:
    """Give the tags of the history here, for hosts that have the commit from another client; where
    none has, the upload brings everything.
    """
    with contextlib.suppress(GitFailed):
        tags = unsent_tags(repository, known_tags(repository, url=url))
        here = merged_tags(repository, tags) if tags else ()
        if here:
            commits = pack_commits(repository, [repository.commit], tags=here)
            return commits, here if commits is not None else ()
    return None, ()


def known_tips(repository: Repository, *, url: str) -> KnownTips:
    """Give what is known to be at the hosts of the front door at `url`."""
    return KnownTips(
        common_directory=repository.common_directory, url=url, project=repository.project
    )
