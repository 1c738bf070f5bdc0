"""What a source may hold, and what is refused before git or the file system sees it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chassis.errors import InvalidArgument
from chassis.limits import BranchInvalid, LimitBroken, check_branch
from workspace_provisioner.errors import FieldInvalid
from workspace_provisioner.sources import (
    Changes,
    ObjectFormat,
    ProjectKey,
    Source,
    Tip,
    checked_lease,
    checked_source,
    checked_tenant,
    checked_tips,
)

COMMIT = "a" * 40


def source(
    *,
    tenant: str = "ada",
    project: str = "p",
    object_format: str = "",
    commit: str = COMMIT,
    branch: str = "",
    digest: str = "",
    changes: Changes | None = None,
) -> Source:
    return checked_source(
        tenant=tenant,
        project=project,
        object_format=object_format,
        commit=commit,
        branch=branch,
        digest=digest,
        changes=changes,
    )


@pytest.mark.parametrize(
    "name",
    [
        "-", "--upload-pack=x", "a..b", "../x", ".hidden", "a/.b", "a.lock", "a.lock/b", "a b",
        "a\nb", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b", "/a", "a/", "a//b", "a.", "a@{1}",
        "HEAD", "a\x7f", "b" * 251, "\ud800",
    ],
)  # fmt: skip
def test_branch_that_git_would_refuse(name: str) -> None:
    with pytest.raises(BranchInvalid) as caught:
        check_branch(name)
    assert caught.value.reason == "branch_invalid"
    assert caught.value.message.endswith(".")
    assert caught.value.remedy


@pytest.mark.parametrize(
    "name",
    [
        "main",
        "fix/login",
        "$(reboot)",
        "a;b",
        "a'b",
        'a"b',
        "a&b|c",
        "ünï",
        "a@b",
        "@",
        "{x}",
        "#1",
        "b" * 250,
        "ü" * 125,
        "/".join(["b" * 250] * 3),
    ],
)
def test_branch_that_git_allows(name: str) -> None:
    assert check_branch(name) == name


@pytest.mark.parametrize(
    ("name", "limit"), [("a/" + "b" * 251, "250 bytes"), ("/".join(["b" * 199] * 6), "1000 bytes")]
)
def test_a_branch_that_is_too_long_is_told_the_limit(name: str, limit: str) -> None:
    with pytest.raises(BranchInvalid) as caught:
        check_branch(name)
    assert f"more than {limit}" in caught.value.message


def test_sound_source() -> None:
    found = source(changes=Changes("b" * 40, b"PACK"), digest="c" * 64, branch="main")
    assert found.key == ProjectKey("ada", "p", ObjectFormat.SHA1)
    assert found.branch == "main"
    assert source(object_format="sha256", commit="a" * 64).key.object_format is ObjectFormat.SHA256


def test_fields_that_are_refused() -> None:
    refused: list[tuple[str, type[InvalidArgument], dict[str, str]]] = [
        ("project_invalid", LimitBroken, {"project": ""}),
        ("project_invalid", LimitBroken, {"project": "x" * 201}),
        ("project_invalid", LimitBroken, {"project": "a\nb"}),
        ("commit_invalid", FieldInvalid, {"commit": "HEAD"}),
        ("commit_invalid", FieldInvalid, {"commit": "A" * 40}),
        ("commit_invalid", FieldInvalid, {"commit": "a" * 39 + "\n"}),
        ("commit_invalid", FieldInvalid, {"commit": "a" * 40, "object_format": "sha256"}),
        ("object_format_invalid", FieldInvalid, {"object_format": "md5"}),
        ("digest_invalid", FieldInvalid, {"digest": "x"}),
        ("branch_invalid", BranchInvalid, {"branch": "-f"}),
        ("tenant_invalid", FieldInvalid, {"tenant": "../x"}),
        ("tenant_invalid", FieldInvalid, {"tenant": ""}),
        ("tenant_invalid", FieldInvalid, {"tenant": ".records"}),
    ]
    for reason, kind, fields in refused:
        with pytest.raises(kind) as caught:
            source(**fields)  # type: ignore[arg-type]
        assert caught.value.reason == reason, fields


def test_changes_have_a_tree() -> None:
    with pytest.raises(FieldInvalid) as caught:
        source(changes=Changes("--exec", b""))
    assert caught.value.reason == "tree_invalid"


def test_a_lease_has_a_default() -> None:
    assert checked_lease(None) == timedelta(minutes=30)


def test_tenants() -> None:
    assert checked_tenant("team-1_x") == "team-1_x"


def test_tips_are_checked() -> None:
    tips = (Tip("refs/heads/main", COMMIT),)
    assert checked_tips(tips, ObjectFormat.SHA1) == tips
    with pytest.raises(FieldInvalid):
        checked_tips([Tip("refs/heads/main", "x")], ObjectFormat.SHA1)


def test_tags_of_a_launch_are_tags() -> None:
    def tagged(*tags: Tip) -> tuple[Tip, ...]:
        return with_tags(tags).tags

    good = Tip("refs/tags/v1", COMMIT)
    assert tagged(good) == (good,)
    for bad in (
        [Tip("refs/heads/main", COMMIT)],
        [Tip("refs/tags/a..b", COMMIT)],
        [Tip("refs/tags/v1", "HEAD")],
    ):
        with pytest.raises(InvalidArgument):
            tagged(*bad)


def with_tags(tags: tuple[Tip, ...]) -> Source:
    return checked_source(
        tenant="ada",
        project="p",
        object_format="",
        commit=COMMIT,
        branch="",
        digest="",
        changes=None,
        tags=tags,
    )


def test_projects_never_share_a_store_name() -> None:
    names = {ProjectKey("ada", each, ObjectFormat.SHA1).digest for each in ("a", "b", "a/b", "A")}
    assert len(names) == 4
    assert all(len(name) == 32 and name.isalnum() for name in names)
