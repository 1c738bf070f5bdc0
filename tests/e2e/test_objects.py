"""Objects that live in a launch's sandbox, through the SDK and the whole stack."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import membrane
from fairlead_sdk import AsyncFairlead, Fairlead
from membrane import AccessRefused, ChildLost, DeadlineExceeded, UnsupportedUse
from tests.e2e.running_stack import ROOT, RunningStack
from tests.e2e.test_documents import blocks
from tests.eventually import SECONDS
from tests.fakes.git_client import GitClient

_AVIARY = b'''
"""A module that exists in the repository alone."""

import time


class Aviary:
    def __init__(self, birds=()):
        self.birds = list(birds)

    def add(self, bird):
        self.birds.append(bird)
        return len(self.birds)

    def each(self, call):
        return [call(bird) for bird in self.birds]

    def blob(self, size):
        return bytes(range(256)) * (size // 256)

    def wait(self, call):
        call()
        while True:
            time.sleep(1)

    def escape(self, call):
        return call.__globals__

    async def sing(self):
        return ["la"] * len(self.birds)
'''

_WORDS = b"""
import collections


class Counter:
    def __init__(self, path):
        with open(path) as file:
            self.words = collections.Counter(file.read().split())

    def most_common(self, count):
        return self.words.most_common(count)
"""


@pytest.fixture
def laptop(tmp_path: Path) -> GitClient:
    made = GitClient(tmp_path / "laptop")
    made.write("aviary.py", _AVIARY)
    made.commit()
    return made


def test_a_class_of_the_repository_lives_in_the_sandbox(
    stack: RunningStack, laptop: GitClient
) -> None:
    with (
        Fairlead(url=stack.url, api_key=stack.api_key) as fairlead,
        fairlead.launch(laptop.path) as launch,
    ):
        aviary_class: Any = launch.isolate("aviary:Aviary", deadline=SECONDS)
        assert "aviary" not in sys.modules
        about = aviary_class.__membrane__
        assert (about.isolation, about.trusted) == (launch.record.isolation, False)
        aviary = aviary_class(["wren"])
        assert aviary.add("heron") == 2
        assert aviary.birds == ["wren", "heron"]
        assert aviary.each(lambda bird: bird.upper()) == ["WREN", "HERON"]
        assert [each.value for each in aviary.add.batch([(("owl",), {}), (("rook",), {})])] == [
            3,
            4,
        ]
        assert aviary.blob(3_000_000) == bytes(range(256)) * (3_000_000 // 256)
        with pytest.raises(AccessRefused):
            aviary.escape(lambda: None)
        with pytest.raises(DeadlineExceeded):
            aviary.wait.with_options(deadline=1.0)(lambda: None)
        assert aviary.add("jay") == 5  # the same child, since the call gave up
        with pytest.raises(UnsupportedUse, match="python="):
            launch.isolate("aviary:Aviary", python="no-such-python")
        with pytest.raises(UnsupportedUse, match="no_such_module"):
            launch.isolate("aviary:Aviary", preload=["no_such_module"])
        with pytest.raises(TypeError, match="trusted"):
            launch.isolate("aviary:Aviary", trusted=True)  # type: ignore[call-arg]
        aviary_class.close()
        with pytest.raises(ChildLost):
            aviary.add("kite")


def test_the_example_of_the_membrane_page_runs(stack: RunningStack, laptop: GitClient) -> None:
    page = (ROOT / "docs" / "membrane.md").read_text()
    (example,) = [each for each in blocks(page, "python") if "launch.isolate" in each]
    names: dict[str, Any] = {}
    exec(example, names)  # noqa: S102 - the page's own
    laptop.write("tools/words.py", _WORDS)
    laptop.write("README.md", b"to be or not to be\n")
    laptop.commit()
    with (
        Fairlead(url=stack.url, api_key=stack.api_key) as fairlead,
        fairlead.launch(laptop.path) as launch,
    ):
        assert names["count_words"](launch)[:2] == [("to", 2), ("be", 2)]


def test_a_call_ends_with_its_launch_and_nothing_is_left(
    stack: RunningStack, laptop: GitClient
) -> None:
    begun = threading.Event()
    found: list[BaseException] = []

    def call(aviary: Any) -> None:
        try:
            aviary.wait(begun.set)
        except BaseException as error:
            found.append(error)

    with Fairlead(url=stack.url, api_key=stack.api_key) as fairlead:
        with fairlead.launch(laptop.path) as launch:
            aviary_class: Any = launch.isolate("aviary:Aviary")
            aviary = aviary_class()
            thread = threading.Thread(target=call, args=(aviary,))
            thread.start()
            assert begun.wait(SECONDS)
            launch.cancel()
            thread.join(SECONDS)
            assert isinstance(found[0], ChildLost)
            assert "released" in str(found[0])
            with pytest.raises(ChildLost, match="no child can be had there"):
                aviary_class()
        with pytest.raises(ChildLost):
            launch.isolate("aviary:Aviary")


def test_a_sandbox_of_its_own_holds_objects_that_were_started_ahead(
    stack: RunningStack,
) -> None:
    with Fairlead(url=stack.url, api_key=stack.api_key) as fairlead:
        with fairlead.sandboxes.create(lease=600) as sandbox:
            sandbox.files.write("aviary.py", _AVIARY)
            assert sandbox.prewarm("one")
            assert not sandbox.prewarm("one")
            aviary_class: Any = sandbox.isolate("aviary:Aviary", share_key="one")
            assert aviary_class.__membrane__.isolation == sandbox.record.isolation
            aviary = aviary_class(["wren"])
            assert aviary.add("heron") == 2
            assert sandbox.close_session("one")
            assert not sandbox.close_session("one")
            with pytest.raises(ChildLost):
                aviary.add("owl")
            fresh: Any = sandbox.isolate("aviary:Aviary")
            held = fresh()
            assert held.add("rook") == 1
        with pytest.raises(ChildLost):
            held.add("jay")
        with pytest.raises(ChildLost, match="closed"):
            sandbox.isolate("aviary:Aviary")


def test_the_asynchronous_client_has_the_same(stack: RunningStack, laptop: GitClient) -> None:
    async def run() -> None:
        async with AsyncFairlead(url=stack.url, api_key=stack.api_key) as fairlead:
            async with fairlead.launch(laptop.path) as launch:
                assert await launch.prewarm("one")
                aviary_class: Any = await launch.isolate("aviary:Aviary", share_key="one")
                aviary = aviary_class(["wren"])
                assert aviary.add("heron") == 2
                assert await aviary.sing() == ["la", "la"]
                other: Any = await launch.isolate("aviary:Aviary", share_key="one")
                assert other.__membrane__.pid == aviary_class.__membrane__.pid
                with pytest.raises(membrane.SessionConflict):
                    await launch.isolate("aviary:Aviary", share_key="one", policy="reference")
                assert await launch.close_session("one")
                with pytest.raises(ChildLost, match="closed"):
                    aviary.add("owl")
                again: Any = await launch.isolate("aviary:Aviary")
                aviary = again()
            with pytest.raises(ChildLost):
                aviary.add("owl")

    asyncio.run(run())
