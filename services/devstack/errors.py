"""What devstack tells a person when it cannot go on: a sentence, and what to do about it."""

from __future__ import annotations

UNAVAILABLE = 69
INTERRUPTED = 130
READER_GONE = 141


class StackError(Exception):
    """The stack cannot start or be reached; `remedies` are one-line ways out, `excerpt` is the end
    of a log.
    """

    def __init__(
        self, message: str, *, remedies: tuple[str, ...] = (), excerpt: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedies = remedies
        self.excerpt = excerpt

    def text(self) -> str:
        """Render the error as lines for standard error."""
        lines = [f"devstack: {self.message}"]
        lines += [f"  | {line}" for line in self.excerpt]
        if len(self.remedies) == 1:
            lines.append(f"  {self.remedies[0]}")
        elif self.remedies:
            lines.append("  Any one of these helps:")
            lines += [f"    {number}. {remedy}" for number, remedy in enumerate(self.remedies, 1)]
        return "\n".join(lines)
