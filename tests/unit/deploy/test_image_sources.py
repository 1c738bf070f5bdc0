"""Every distribution of this repository reaches the images and the stamps that stand for them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MEMBERS = PROJECT["tool"]["uv"]["workspace"]["members"]


def is_needed(member: str) -> bool:
    project = tomllib.loads((ROOT / member / "pyproject.toml").read_text())["project"]
    return project["name"] in PROJECT["project"]["dependencies"]


@pytest.mark.parametrize("member", MEMBERS)
def test_its_packages_are_installed_with_the_others(member: str) -> None:
    file = f"{member}/pyproject.toml"
    assert f"COPY {file} {file}\n" in (ROOT / "deploy/docker/Dockerfile").read_text()
    assert file in re.findall(r"^LOCKED := (.*)$", (ROOT / "Makefile").read_text(), re.M)[0].split()
    sent = (ROOT / ".dockerignore").read_text().split()
    assert {f"!{member}", f"!{file}"} & set(sent)


@pytest.mark.parametrize("member", [each for each in MEMBERS if is_needed(each)])
def test_what_a_room_needs_is_in_its_image(member: str) -> None:
    assert f"COPY {member} {member}\n" in (ROOT / "deploy/docker/Dockerfile").read_text()
    assert f"!{member}" in (ROOT / ".dockerignore").read_text().split()
