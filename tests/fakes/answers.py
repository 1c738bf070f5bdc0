"""Kept answers in a dictionary."""

from __future__ import annotations

from signalling.kept_answers import KeptAnswer


class FakeAnswers:
    """Keeps for ever."""

    def __init__(self) -> None:
        self._answers: dict[str, KeptAnswer] = {}

    @property
    def bodies(self) -> list[str]:
        """What is kept, in the order in which it came."""
        return [answer.body for answer in self._answers.values()]

    async def claim(self, name: str, digest: str, *, ttl_seconds: int) -> KeptAnswer | None:
        found = self._answers.get(name)
        if found is None:
            self._answers[name] = KeptAnswer(digest)
        return found

    async def keep(self, name: str, answer: KeptAnswer, *, ttl_seconds: int) -> None:
        self._answers[name] = answer

    async def drop(self, name: str) -> None:
        self._answers.pop(name, None)
