"""`fairlead workspace` against a front door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.wire.cli_runner import CliRunner, make_cli
from tests.fakes import workspace_documents as documents
from tests.fakes.launch_documents import LAUNCH_ID, launch
from tests.fakes.scripted_door import Answer, Script, problem, serve
from tests.fakes.workspace_documents import PATH, WORKSPACE_ID

WORKSPACES = "/v1/workspaces"
OTHER_ID = "wsp_" + "b" * 26


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Script, str]]:
    script = Script()
    with serve(script) as url:
        yield script, url


@pytest.fixture
def cli(
    served: tuple[Script, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> CliRunner:
    runner = make_cli(served, tmp_path, monkeypatch, capfdbinary)
    made = Answer(status=201, document=documents.workspace())
    runner.script.on("POST", WORKSPACES, made).on("GET", PATH, made)
    listed(runner, documents.workspace(), documents.workspace(workspace_id=OTHER_ID, name=""))
    page = {"launches": [launch(workspace_id=OTHER_ID)], "next_page_token": ""}
    runner.script.on("GET", "/v1/launches", Answer(document=page))
    return runner


def listed(cli: CliRunner, *workspaces: documents.Document) -> None:
    page = {"workspaces": list(workspaces), "next_page_token": ""}
    cli.script.on("GET", WORKSPACES, Answer(document=page))


def test_create_prints_the_id(cli: CliRunner) -> None:
    ended = cli("workspace", "create", "--name", "fix", "--branch", "try-1", "--lease", "600")
    assert (ended.status, ended.stdout) == (0, f"{WORKSPACE_ID}\n".encode())
    assert "fix is held until" in ended.stderr
    body = cli.script.asked("POST", WORKSPACES)[0].document
    del body["source"]
    assert body == {"name": "fix", "branch": "try-1", "claim_branch": True, "lease": 600.0}


def test_create_as_json_is_the_workspace_and_nothing_else(cli: CliRunner) -> None:
    ended = cli("workspace", "create", "-o", "json", str(cli.repository.path / "folder"))
    assert ended.lines == [documents.workspace()]
    assert (ended.status, ended.stderr) == (0, "")


def test_create_sends_what_the_host_lacks(cli: CliRunner) -> None:
    cli.script.on("POST", WORKSPACES, documents.miss())
    cli.script.on("POST", "/v1/snapshots", documents.uploaded(documents.workspace()))
    ended = cli("workspace", "create")
    assert ended.stdout == f"{WORKSPACE_ID}\n".encode()
    assert "the host does not have this project yet; sending what is lacking" in ended.stderr


def test_create_warns_of_what_is_not_what_was_asked_for(cli: CliRunner) -> None:
    fresh = {"branch": "main", "as_of": None, "fallback": True, "reason": "origin_timeout"}
    made = documents.workspace(freshness=fresh, lfs_pointers=3)
    cli.script.on("POST", WORKSPACES, Answer(status=201, document=made))
    ended = cli("workspace", "create")
    assert "not the tip of main: origin did not answer the host in time." in ended.stderr
    assert "3 files are LFS pointers" in ended.stderr


def test_create_warns_of_submodules_that_stay_and_of_no_others(cli: CliRunner) -> None:
    cli.repository.write(".gitmodules", b'[submodule "s"]\n\tpath = s\n\turl = ../s\n')
    assert "their files do not travel" in cli("workspace", "create").stderr
    assert "their files do not travel" not in cli("workspace", "create", "--submodules").stderr


def test_ls_is_a_table_and_in_json_the_documents(cli: CliRunner) -> None:
    ended = cli("workspace", "ls")
    head, first, second = ended.stdout.decode().splitlines()
    titles = ["WORKSPACE", "NAME", "PROJECT", "BRANCH", "COMMIT", "AGE", "HELD", "FOR", "LAUNCH"]
    assert head.split() == titles
    assert first.split()[:5] == [WORKSPACE_ID, "fix", "p", "main", "c" * 12]
    assert LAUNCH_ID not in first
    assert second.split()[:3] == [OTHER_ID, "p", "main"]
    assert second.endswith(f"  {LAUNCH_ID}"), "it is a launch's own"
    as_json = cli("workspace", "ls", "-o", "json").lines
    assert as_json[0]["workspaces"][0] == documents.workspace()  # type: ignore[index]
    listed(cli)
    assert "there are no workspaces" in cli("workspace", "ls").stderr


def test_hosts_that_do_not_answer_are_named(cli: CliRunner) -> None:
    page = {"workspaces": [documents.workspace()], "next_page_token": "", "unanswered_hosts": ["h"]}
    cli.script.on("GET", WORKSPACES, Answer(document=page))
    ended = cli("workspace", "ls")
    assert (ended.status, ended.stdout.count(b"\n")) == (0, 2)
    assert "warning: h does not answer; what it holds is not listed." in ended.stderr
    lost = cli("workspace", "rm", "other")
    assert lost.status == 69
    assert "no answer from h." in lost.stderr


def test_show_counts_the_changed_files(cli: CliRunner) -> None:
    counted = documents.workspace(changed_files=2)
    cli.script.on("GET", PATH, Answer(document=counted))
    shown = dict(
        line.split(maxsplit=1)
        for line in cli("workspace", "show", "fix").stdout.decode().splitlines()
        if not line.startswith("made by")
    )
    assert (shown["workspace"], shown["name"]) == (WORKSPACE_ID, "fix")
    assert (shown["branch"], shown["changed"]) == ("main", "2 files")
    assert cli("workspace", "show", WORKSPACE_ID, "-o", "json").lines == [counted]
    assert cli.script.asked("GET", PATH)[-1].query == {"count_changes": "true"}


@pytest.mark.parametrize("named", [WORKSPACE_ID, "wsp_aaa", "aaaa", "fix"])
def test_a_workspace_is_named_by_id_its_beginning_or_its_name(cli: CliRunner, named: str) -> None:
    cli.script.on("DELETE", PATH, Answer(document={"released": True}))
    ended = cli("workspace", "rm", named)
    assert (ended.status, ended.stdout) == (0, b"")
    assert f"{WORKSPACE_ID} is given back." in ended.stderr


def test_what_could_be_two_is_neither(cli: CliRunner) -> None:
    ended = cli("workspace", "rm", "wsp_")
    assert ended.status == 1
    assert "2 workspaces begin with wsp_." in ended.stderr
    listed(
        cli, documents.workspace(), documents.workspace(workspace_id=OTHER_ID, project="another")
    )
    assert "2 workspaces are called fix." in cli("workspace", "rm", "fix").stderr
    ended = cli("workspace", "rm", "nothing")
    assert (ended.status, cli.script.asked("DELETE", PATH)) == (1, [])
    assert "remedy: fairlead workspace ls" in ended.stderr


def test_rm_refuses_to_lose_work_and_forces_when_told(cli: CliRunner) -> None:
    refusal = problem(409, "workspace_dirty")
    cli.script.on("DELETE", PATH, refusal, Answer(document={"released": True}))
    ended = cli("workspace", "rm", "fix")
    assert (ended.status, ended.stdout) == (1, b"")
    assert ended.stderr == "fairlead: It is workspace_dirty.\n  remedy: Stop.\n"
    forced = cli("workspace", "rm", "--force", "fix", "-o", "json")
    assert forced.lines == [{"workspace_id": WORKSPACE_ID, "released": True}]
    queries = [one.query for one in cli.script.asked("DELETE", PATH)]
    assert queries == [{}, {"force": "true"}]


def test_rm_all_leaves_those_of_launches_and_goes_on_after_a_refusal(cli: CliRunner) -> None:
    dirty = documents.workspace(workspace_id="wsp_" + "c" * 26, name="dirty")
    held = documents.workspace(workspace_id=OTHER_ID, name="")
    listed(cli, dirty, held, documents.workspace())
    cli.script.on(
        "DELETE", f"{WORKSPACES}/{dirty['workspace_id']}", problem(409, "workspace_dirty")
    )
    cli.script.on("DELETE", PATH, Answer(document={"released": True}))
    ended = cli("workspace", "rm", "--all")
    assert ended.status == 1
    assert "It is workspace_dirty." in ended.stderr
    assert f"{WORKSPACE_ID} is given back." in ended.stderr
    assert cli.script.asked("DELETE", f"{WORKSPACES}/{OTHER_ID}") == []
    assert cli("workspace", "rm").status == 2


def test_renewing_a_workspace_names_the_sandboxes_whose_own_lease_ends_before(
    cli: CliRunner,
) -> None:
    renewed = documents.workspace(expires_at="2026-01-02T05:00:00Z")
    cli.script.on("POST", f"{PATH}/renew", Answer(document=renewed))
    sandboxes = [
        {"sandbox_id": f"sbx_{name}", "workspace_id": where, "launch_id": of, "expires_at": until}
        for name, where, of, until in (
            ("a", WORKSPACE_ID, LAUNCH_ID, "2026-01-02T04:00:00Z"),
            ("b", WORKSPACE_ID, "", "2026-01-02T04:00:00Z"),
            ("c", WORKSPACE_ID, "", "2026-01-02T06:00:00Z"),
            ("d", OTHER_ID, "", "2026-01-02T04:00:00Z"),
        )
    ]
    page = {"sandboxes": sandboxes, "next_page_token": ""}
    cli.script.on("GET", "/v1/sandboxes", Answer(document=page))
    shown = cli("workspace", "renew", "fix").stderr
    assert f"only: fairlead launch renew {LAUNCH_ID}" in shown
    assert "only: fairlead sandbox renew sbx_b" in shown
    assert shown.count("warning") == 2


def test_fork_rename_and_renew(cli: CliRunner) -> None:
    copy = documents.workspace(workspace_id=OTHER_ID, name="copy", rung="fork")
    cli.script.on("POST", f"{PATH}/fork", Answer(status=201, document=copy))
    cli.script.on("POST", f"{PATH}/rename", Answer(document=documents.workspace(name="done")))
    cli.script.on("POST", f"{PATH}/renew", Answer(document=documents.workspace()))
    forked = cli("workspace", "fork", "fix", "--name", "copy", "--branch", "try-2")
    assert forked.stdout == f"{OTHER_ID}\n".encode()
    (asked,) = cli.script.asked("POST", f"{PATH}/fork")
    assert asked.document == {"name": "copy", "branch": "try-2"}
    assert f"{WORKSPACE_ID} is called done." in cli("workspace", "rename", "fix", "done").stderr
    assert "fix is held until" in cli("workspace", "renew", "fix", "--lease", "60").stderr
    for verb in (["rename", "fix", "done"], ["renew", "fix"], ["fork", "fix"]):
        (document,) = cli("workspace", *verb, "-o", "json").lines
        assert document["workspace_id"] in (WORKSPACE_ID, OTHER_ID)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (problem(409, "workspace_exists"), 1),
        (problem(409, "branch_in_use"), 1),
        (problem(400, "name_invalid"), 1),
        (problem(429, "quota"), 1),
        (problem(503, "base_locked"), 69),
        (problem(503, "host_away"), 69),
        (problem(401, "key_invalid"), 77),
        (problem(403, "forbidden"), 77),
        (problem(500, "internal"), 70),
        (problem(504, "step_timeout"), 124),
    ],
)
def test_a_refusal_is_a_sentence_a_remedy_and_a_status(
    cli: CliRunner, answer: Answer, status: int
) -> None:
    cli.script.on("POST", WORKSPACES, answer)
    ended = cli("workspace", "create")
    assert (ended.status, ended.stdout) == (status, b"")
    reason = answer.document["reason"] if answer.document else ""
    assert ended.stderr == f"fairlead: It is {reason}.\n  remedy: Stop.\n"
    (told,) = cli("workspace", "create", "-o", "json").lines
    assert told["reason"] == reason


@pytest.mark.parametrize(
    "words",
    [
        ["workspace"],
        ["workspace", "nonsense"],
        ["workspace", "show"],
        ["workspace", "rename", "fix"],
        ["workspace", "rm"],
        ["workspace", "create", "--lease", "never"],
        ["workspace", "create", "--lease", "0"],
        ["workspace", "renew", "fix", "--lease", "999999"],
        ["workspace", "create", "--name", ""],
        ["workspace", "fork", "fix", "--branch", ""],
        ["workspace", "create", "--from", "elsewhere"],
    ],
)
def test_words_that_it_cannot_read_end_with_2(cli: CliRunner, words: list[str]) -> None:
    ended = cli(*words)
    assert (ended.status, ended.stdout) == (2, b"")
    assert ended.stderr.startswith("usage: fairlead workspace")
    assert cli.script.received == []


@pytest.mark.parametrize("lease", ["0", "0.5", "86401", "100000000"])
def test_a_lease_that_no_host_grants_names_the_bounds(cli: CliRunner, lease: str) -> None:
    ended = cli("workspace", "create", "--lease", lease)
    assert (ended.status, ended.stdout) == (2, b"")
    assert f"'{lease}' is not from 1 second to 24 hours" in ended.stderr
