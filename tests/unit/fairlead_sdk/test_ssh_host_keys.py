"""What an SSH host is asked, and what not, when a connection breaks or a launch is given up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fairlead_sdk.repository import Repository
from fairlead_sdk.ssh_channel import HostChannel
from fairlead_sdk.ssh_errors import ConnectionLost
from fairlead_sdk.ssh_frames import Decoder, Frame, encoded
from fairlead_sdk.ssh_host import AsyncSshHost

COMMIT = "a" * 40
ADDRESS = "ssh://ada@box/srv/fairlead"


class Box:
    """A host in memory that keeps one workspace for each key; it hangs up at its first questions
    when told to.
    """

    def __init__(self, *, hangs_up: int = 0) -> None:
        self.asked: list[tuple[str, object]] = []
        self.patience: list[float] = []
        self.reader = asyncio.StreamReader()
        self._hangs_up = hangs_up
        self._decoder = Decoder()

    async def channel(self, *, patience: float = 0.0) -> HostChannel:
        self.patience.append(patience)
        self.reader = asyncio.StreamReader()
        channel = HostChannel(reader=self.reader, writer=self, destination="ada@box")
        self.following = asyncio.ensure_future(channel.follow())
        return channel

    def write(self, content: bytes) -> None:
        for frame in self._decoder.feed(content):
            if frame.type == "call":
                self._answer(frame)

    def _answer(self, frame: Frame) -> None:
        key = frame.fields.get("idempotency_key")
        self.asked.append((str(frame.fields["verb"]), key))
        if self._hangs_up:
            self._hangs_up -= 1
            self.reader.feed_eof()
            return
        workspace = {"workspace_id": f"wsp of {key}", "commit": COMMIT}
        self.reader.feed_data(encoded(frame.call, "answer", workspace=workspace, released=True))

    async def drain(self) -> None:
        return None

    def close(self) -> None:
        self.reader.feed_eof()


def repository(path: Path) -> Repository:
    return Repository(
        top=path,
        git_directory=path / ".git",
        common_directory=path / ".git",
        objects=path / ".git" / "objects",
        directory="",
        commit=COMMIT,
        branch="main",
        object_format="sha1",
        project="p",
        digest="",
        tips=(),
        changes=None,
        warnings=(),
        noticed=(),
    )


def test_a_request_whose_answer_was_lost_is_repeated_with_its_key(tmp_path: Path) -> None:
    async def scenario() -> Box:
        box = Box(hangs_up=2)
        host = AsyncSshHost(ADDRESS, connections=box)
        made = await host.materialize(repository(tmp_path), key="one")
        assert made.workspace_id == "wsp of one"
        return box

    box = asyncio.run(scenario())
    assert box.asked == [("materialize", "one")] * 3
    assert box.patience[0] == 0
    assert all(patience > 0 for patience in box.patience[1:])


def test_three_losses_are_told(tmp_path: Path) -> None:
    async def scenario() -> Box:
        box = Box(hangs_up=3)
        with pytest.raises(ConnectionLost):
            await AsyncSshHost(ADDRESS, connections=box).materialize(repository(tmp_path))
        return box

    box = asyncio.run(scenario())
    assert len({key for _, key in box.asked}) == 1
    assert len(box.asked) == 3


def test_giving_up_asks_the_host_only_when_it_heard_of_the_key(tmp_path: Path) -> None:
    async def scenario() -> Box:
        box = Box()
        host = AsyncSshHost(ADDRESS, connections=box)
        await host.give_up("never asked")
        assert box.patience == []
        await host.materialize(repository(tmp_path), key="one")
        await host.give_up("one")
        return box

    box = asyncio.run(scenario())
    assert box.asked == [("materialize", "one"), ("release", "one")]
