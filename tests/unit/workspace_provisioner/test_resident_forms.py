"""What SSH hosts answer has the names of the protos; what they are asked is checked as ever."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from chassis.errors import InvalidArgument
from fairlead.snapshot.v1 import snapshot_pb2
from fairlead.workspace.v1 import workspace_pb2
from tests.fakes.virtual_time import EPOCH
from workspace_provisioner.resident.commands import DirectoryInvalid, directory_in
from workspace_provisioner.resident.wire_forms import (
    Fields,
    command_of,
    lease_of,
    name_of,
    outcome_form,
    snapshot_form,
    source_of,
    tips_of,
    workspace_id_of,
)
from workspace_provisioner.sources import ObjectFormat, ProjectKey, Tip
from workspace_provisioner.workspaces import (
    Freshness,
    Miss,
    MissReason,
    Order,
    Snapshot,
    requested_workspace,
)

COMMIT = "a" * 40
PACK = base64.b64encode(b"PACK").decode()
SOURCE: dict[str, object] = {
    "project": "p",
    "object_format": "sha1",
    "commit": COMMIT,
    "branch": "main",
    "digest": "",
    "changes": {"tree": "b" * 40, "pack": PACK},
    "noticed": ["dirty_too_large"],
}


def fields(document: type) -> set[str]:
    return {field.name for field in document.DESCRIPTOR.fields}  # type: ignore[attr-defined]


def test_a_workspace_has_the_names_of_the_proto_and_its_path() -> None:
    source = source_of(Fields({"source": SOURCE}))
    order = Order("wsp_x", source, "main", timedelta(minutes=30))
    made = requested_workspace(order, EPOCH)
    made = replace(made, freshness=Freshness("main", EPOCH))
    form = outcome_form(made, trees=Path("/srv/trees"), host_id="hst_x")["workspace"]
    assert isinstance(form, dict)
    assert set(form) == fields(workspace_pb2.Workspace) - {"changed_files"} | {"path"}
    assert set(form["freshness"]) == fields(snapshot_pb2.Freshness)
    assert form["path"] == "/srv/trees/wsp_x"
    assert form["created_at"] == "2026-01-01T00:00:00Z"


def test_a_miss_and_a_snapshot_have_the_names_of_the_protos() -> None:
    miss = outcome_form(Miss(MissReason.NO_BASE, (COMMIT,)), trees=Path("/srv"), host_id="hst_x")
    assert miss == {"miss": {"reason": "no_base", "wanted": [COMMIT], "tips": []}}
    key = ProjectKey("local", "p", ObjectFormat.SHA1)
    tips = (Tip("refs/heads/main", COMMIT),)
    snapshot = Snapshot("snp_x", key, "", COMMIT, "", tips, EPOCH, 7)
    assert set(snapshot_form(snapshot, host_id="hst_x")) == fields(snapshot_pb2.Snapshot)


def test_a_source_is_the_one_that_the_front_door_takes() -> None:
    commits = {"against": ["c" * 40], "pack": PACK}
    upstream = {"url": "https://example.org/p.git", "branch": "main", "max_age": 60}
    source = source_of(Fields({"source": {**SOURCE, "commits": commits, "submodules": True}}))
    assert source.changes is not None
    assert source.changes.pack == b"PACK"
    assert source.commits is not None
    assert source.commits.against == ("c" * 40,)
    assert source.submodules
    clean = {name: value for name, value in SOURCE.items() if name != "changes"}
    asked = source_of(Fields({"source": {**clean, "upstream": upstream}})).upstream
    assert asked is not None
    assert (asked.branch, asked.max_age) == ("main", timedelta(minutes=1))
    tag = {"ref": "refs/tags/v1", "commit": "c" * 40}
    assert source_of(Fields({"source": {**clean, "tags": [tag]}})).tags == (Tip(*tag.values()),)


@pytest.mark.parametrize(
    ("reads", "document"),
    [
        (source_of, {}),
        (source_of, {"source": 7}),
        (source_of, {"source": {**SOURCE, "commit": "main"}}),
        (source_of, {"source": {**SOURCE, "branch": "--upload-pack=x"}}),
        (source_of, {"source": {**SOURCE, "project": ["p"]}}),
        (source_of, {"source": {**SOURCE, "changes": {"tree": "b" * 40, "pack": "!"}}}),
        (source_of, {"source": {**SOURCE, "upstream": {"url": "file:///etc", "branch": "x"}}}),
        (source_of, {"source": {**SOURCE, "submodules": "yes"}}),
        (lease_of, {"lease": -1}),
        (lease_of, {"lease": 1e9}),
        (lease_of, {"lease": True}),
        (lease_of, {"lease": float("nan")}),
        (name_of, {"name": "../x"}),
        (workspace_id_of, {"workspace_id": "../../etc"}),
        (workspace_id_of, {}),
        (command_of, {}),
        (command_of, {"arguments": "ls"}),
        (command_of, {"arguments": [""]}),
        (command_of, {"arguments": ["ls", 1]}),
        (command_of, {"arguments": ["ls", "a\0b"]}),
        (command_of, {"arguments": ["ls"], "environment": {"A=B": "c"}}),
        (command_of, {"arguments": ["ls"], "environment": {"A": 1}}),
        (command_of, {"arguments": ["ls"], "timeout": 0}),
    ],
)
def test_what_is_not_of_its_form_is_refused(
    reads: Callable[[Fields], object], document: dict[str, object]
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        reads(Fields(document))
    assert refused.value.remedy


def test_tips_are_refs_and_commits() -> None:
    source = source_of(Fields({"source": SOURCE}))
    tips = [{"ref": "refs/heads/main", "commit": COMMIT}]
    assert tips_of(Fields({"tips": tips}), source) == (Tip("refs/heads/main", COMMIT),)
    refused: list[object] = [
        [{"ref": "../x", "commit": COMMIT}],
        ["x"],
        {},
        [{"ref": "refs/heads/a"}],
    ]
    for wrong in refused:
        with pytest.raises(InvalidArgument):
            tips_of(Fields({"tips": wrong}), source)


def test_a_directory_stays_in_the_workspace(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "file").write_text("")
    (tree / "out").symlink_to(tmp_path)
    (tree / "in").symlink_to("sub")
    (tree / "round").symlink_to("round")
    assert directory_in(tree, "") == tree
    assert directory_in(tree, "in") == tree / "sub"
    for name in ("..", "out", "out/tree/..", "/", str(tree), "file", "absent", "round", "a\0b"):
        with pytest.raises(DirectoryInvalid):
            directory_in(tree, name)
