"""The thin pack that a host asked for after a miss, as a stream of bytes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterator, Sequence

from fairlead_sdk.errors import RepositoryError
from fairlead_sdk.git import PACK, ask_for_pack, finish_git, start_git
from fairlead_sdk.repository import Repository

_CHUNK_BYTES = 256 * 1024
_HEADER_BYTES = 12


def stream_pack(
    repository: Repository, *, host_tips: Sequence[str] = ()
) -> Generator[bytes, None, None]:
    """Give the pack with the wanted commit, every local head and the changes, without what
    `host_tips` reach.

    Tips that this repository does not have are left out of the bargain. Nothing is given when
    nothing is lacking. Raises `RepositoryError`, `objects_missing`, when the repository itself
    lacks objects.
    """
    environment: dict[str, str] = {"GIT_DIR": os.fspath(repository.git_directory)}
    wanted = [repository.commit, *(tip.commit for tip in repository.tips)]
    if repository.changes is not None:
        environment["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = os.fspath(repository.changes.objects)
        wanted.append(repository.changes.tip)
    excluded = _present(host_tips, environment)
    lines = [*dict.fromkeys(wanted), *(f"^{tip}" for tip in excluded)]
    process = start_git(*PACK, environment=environment, stdin=True)
    try:
        yield from _chunks(process, "".join(f"{line}\n" for line in lines).encode("ascii"))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _chunks(process: subprocess.Popen[bytes], request: bytes) -> Iterator[bytes]:
    source = ask_for_pack(process, request)
    first = source.read(_HEADER_BYTES)
    empty = int.from_bytes(first[8:12], "big") == 0  # gitformat-pack(5): number of objects
    if not empty:
        yield first
    while chunk := source.read(_CHUNK_BYTES):
        if not empty:
            yield chunk
    stderr = process.stderr.read() if process.stderr is not None else b""
    if process.wait() != 0:
        sentence = stderr.decode("utf-8", "replace").strip().splitlines()
        raise RepositoryError(
            f"git cannot pack the repository: {sentence[-1] if sentence else 'no reason given'}",
            reason="objects_missing",
            remedy="git fsck, then fetch what is missing from the repository's remote.",
        )


def _present(tips: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Give those of the host's tips that are commits in this repository."""
    if not tips:
        return []
    process = start_git("cat-file", "--batch-check", environment=environment, stdin=True)
    answer = finish_git(process, "".join(f"{tip}^{{commit}}\n" for tip in tips).encode())
    lines = (line.split() for line in answer.stdout.decode("utf-8", "replace").splitlines())
    return [words[0] for words in lines if len(words) == 3 and words[1] == "commit"]
