"""Where a process is in the cgroup hierarchies, from the texts of proc(5), and what is said where
nothing can be limited.
"""

from __future__ import annotations

from pathlib import Path

from sandbox_worker.isolation.cgroup_files import Place, own_places
from sandbox_worker.isolation.cgroup_survey import survey

_HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/one /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 /elsewhere /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
_HYBRID_MEMBER = """\
4:memory:/docker/one/below
2:cpu,cpuacct:/
1:name=systemd:/user
0::/user.slice
"""


def test_hierarchies_are_found_below_their_mounts() -> None:
    root = Path("/sys/fs/cgroup")
    assert own_places(_HYBRID, _HYBRID_MEMBER) == [
        Place(frozenset({"cpu", "cpuacct"}), root / "cpu,cpuacct", root / "cpu,cpuacct"),
        Place(frozenset({"memory"}), root / "memory", root / "memory/below"),
        Place(frozenset({"name=systemd"}), root / "systemd", root / "systemd/user"),
    ]


def test_version_2_is_found_in_a_cgroup_namespace() -> None:
    mounts = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"
    root = Path("/sys/fs/cgroup")
    assert own_places(mounts, "0::/\n") == [Place(frozenset(), root, root)]


def test_without_a_hierarchy_each_wall_says_so() -> None:
    found = survey(
        name="fairlead-none", mounts="1 1 0:1 / / rw - ext4 x rw\n", memberships="0::/\n"
    )
    assert found.tree is None
    assert [wall.name for wall in found.walls] == ["cgroup_memory", "cgroup_pids", "cgroup_cpu"]
    assert not any(wall.stands for wall in found.walls)
    assert all("no cgroup hierarchy" in wall.reason for wall in found.walls)


def test_a_cgroup_that_others_share_is_not_divided(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory pids cpu io\n")
    (tmp_path / "cgroup.subtree_control").write_text("\n")
    (tmp_path / "cgroup.type").write_text("domain\n")
    (tmp_path / "cgroup.procs").write_text("1\n2\n")
    mounts = f"29 23 0:26 / {tmp_path} rw - cgroup2 cgroup rw\n"
    found = survey(name="fairlead-shared", mounts=mounts, memberships="0::/\n")
    assert found.tree is None
    assert all("other processes" in wall.reason for wall in found.walls)
    assert not (tmp_path / "fairlead-shared").exists()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "\n"


def test_a_hierarchy_in_which_nothing_can_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("not a directory")
    mounts = f"29 23 0:26 / {tmp_path / 'memory'} rw - cgroup cgroup rw,memory\n"
    found = survey(name="fairlead-broken", mounts=mounts, memberships="4:memory:/\n")
    assert found.tree is None
    assert next(wall.reason for wall in found.walls) == "Not a directory"
