"""The source that a launch or a workspace is made of, as the front door takes it."""

from __future__ import annotations

import base64

from fairlead_sdk.errors import RepositoryError
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.known_tips import KnownTips
from fairlead_sdk.packs import pack_commits
from fairlead_sdk.repository import Repository


def source_document(repository: Repository, *, url: str) -> JsonObject:
    """Give the JSON form, with the commits that are new since what the front door at `url` is known
    to have.

    It runs git when there are new commits.
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
        commits = pack_commits(repository, known_tips(repository, url=url).commits)
    except RepositoryError as error:  # the upload that follows says what to do about it
        noticed.append(error.reason)
    else:
        if commits is not None:
            pack = base64.b64encode(commits.pack).decode("ascii")
            source["commits"] = {"against": list(commits.against), "pack": pack}
    if noticed:
        source["noticed"] = list(noticed)
    return source


def known_tips(repository: Repository, *, url: str) -> KnownTips:
    """Give what is known to be at the hosts of the front door at `url`."""
    return KnownTips(
        common_directory=repository.common_directory, url=url, project=repository.project
    )
