"""What became of each item of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload


class Outcome:
    """Tell one item's result or error; an item behind the first error of a stopping batch was never
    run.
    """

    __slots__ = ("_error", "_value", "ran")

    def __init__(
        self, *, value: object = None, error: BaseException | None = None, ran: bool = True
    ) -> None:
        self._value = value
        self._error = error
        self.ran = ran

    @property
    def error(self) -> BaseException | None:
        """Give what the item raised, or None."""
        return self._error

    @property
    def ok(self) -> bool:
        """Say whether the item ran and raised nothing."""
        return self.ran and self._error is None

    @property
    def value(self) -> object:
        """Give the result; raise the item's error, or RuntimeError for an item that never ran."""
        if self._error is not None:
            raise self._error
        if not self.ran:
            raise RuntimeError("this item never ran: the batch stopped at an earlier error")
        return self._value

    def __repr__(self) -> str:
        if not self.ran:
            return "Outcome(never ran)"
        if self._error is not None:
            return f"Outcome(error={self._error!r})"
        return f"Outcome(value={self._value!r})"


class Outcomes(Sequence[Outcome]):
    """Hold one outcome per item of a batch, in order; finished items keep their results after an
    error.

    `results` are those of the items that ran, in order; `errors` are by index; `count` is of all
    items.
    """

    __slots__ = ("_count", "_errors", "_results")

    def __init__(
        self,
        *,
        results: Sequence[object],
        errors: dict[int, BaseException] | None = None,
        count: int | None = None,
    ) -> None:
        self._results = results
        self._errors = errors or {}
        self._count = len(results) if count is None else count

    @property
    def first_error(self) -> tuple[int, BaseException] | None:
        """Give index and error of the first item that failed, or None."""
        if not self._errors:
            return None
        index = min(self._errors)
        return index, self._errors[index]

    def values(self) -> list[object]:
        """Give all results; raise the first error, with the item's index as a note."""
        failed = self.first_error
        if failed is not None:
            index, error = failed
            note = f"item {index} of a batch of {self._count}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            raise error
        return list(self._results)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Outcome: ...
    @overload
    def __getitem__(self, index: slice) -> list[Outcome]: ...
    def __getitem__(self, index: int | slice) -> Outcome | list[Outcome]:
        if isinstance(index, slice):
            return [self._at(place) for place in range(*index.indices(self._count))]
        place = index + self._count if index < 0 else index
        if not 0 <= place < self._count:
            raise IndexError(f"the batch has {self._count} items, there is no {index}")
        return self._at(place)

    def __iter__(self) -> Iterator[Outcome]:
        return map(self._at, range(self._count))

    def __repr__(self) -> str:
        return f"Outcomes({len(self._results)} of {self._count} ran, {len(self._errors)} failed)"

    def _at(self, place: int) -> Outcome:
        if place in self._errors:
            return Outcome(error=self._errors[place])
        if place >= len(self._results):
            return Outcome(ran=False)
        return Outcome(value=self._results[place])
