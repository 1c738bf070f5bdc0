"""The commands in the documents do what the documents say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from membrane.sessions import search_path
from membrane.walling import wall_terms
from tests.e2e.running_stack import ROOT, Places, RunningStack

BIN = str(Path(sys.executable).parent)
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str = "sh") -> list[str]:
    """Return the blocks of a page in one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run(script: str, *, cwd: Path, environment: Mapping[str, str]) -> str:
    """Run a script as a reader would, stopping at the first failure."""
    done = subprocess.run(
        ["sh", "-ec", script],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_first_block_of_the_readme_is_two_targets_of_the_makefile() -> None:
    """`make demo` has a test of its own; `make test` is what runs this."""
    commands = [line.partition("#")[0].split() for line in blocks(README)[0].splitlines()]
    assert commands == [["make", "demo"], ["make", "test"]]
    assert {"demo", "test"} <= make_targets()


def test_every_make_target_that_a_document_names_exists() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]
    named = {
        name for page in pages for name in re.findall(r"`make ([a-z][a-z-]*)", page.read_text())
    }
    assert named - make_targets() == set()


def test_the_second_block_of_the_readme_runs(own_places: Places) -> None:
    _, second = blocks(README)
    said = run(second, cwd=ROOT, environment=own_places.environment)
    assert "## " in said, "git status --short --branch ran in the sandbox"
    assert own_places.leftovers() == []


def test_links_between_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("services/*/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", "-b", "main", tmp_path], check=True)
    for name, value in (("user.name", "Test"), ("user.email", "test@example.org")):
        subprocess.run(["git", "-C", tmp_path, "config", name, value], check=True)
    (tmp_path / "hello.txt").write_text("hello\n")
    subprocess.run(["git", "-C", tmp_path, "add", "-A"], check=True)
    subprocess.run(["git", "-C", tmp_path, "commit", "-qm", "first"], check=True)
    return tmp_path


def test_the_api_page_runs(stack: RunningStack, repository: Path) -> None:
    page = blocks((ROOT / "docs" / "api.md").read_text())
    path = f"{BIN}:{os.environ['PATH']}"
    said = run("\n".join(page), cwd=repository, environment=stack.environment | {"PATH": path})
    assert said.count('"type":"exited"') == 1
    assert "LAUNCH_STATE_CANCELLED" in said


def test_the_membrane_page_prints_what_its_comments_say(tmp_path: Path) -> None:
    page = "\n".join(blocks((ROOT / "docs" / "membrane.md").read_text(), "python"))
    comments = re.findall(r"^ *print\(.*?  # (.*)$", page, re.MULTILINE)
    if not wall_terms(None, search_path(None)).terms:
        page = page.replace('isolation="walled"', 'isolation="process"')
    script = tmp_path / "page.py"
    script.write_text(page)
    said = run(f"'{sys.executable}' '{script}'", cwd=tmp_path, environment=os.environ)
    assert said.splitlines() == [line for comment in comments for line in comment.split(" / ")]
    assert len(comments) > 5
