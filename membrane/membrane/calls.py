"""How one call travels: what its caller may ask for, beside what is called."""

from __future__ import annotations

from dataclasses import dataclass

from membrane.frames import RETURNS_REFERENCE, RETURNS_VALUE, RETURNS_VIEWS

_NAMES = {None: 0, "value": RETURNS_VALUE, "reference": RETURNS_REFERENCE}


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The wishes of one call: policies of its arguments and of what it returns, `value`,
    `reference` or None as the session has them; views of large results instead of copies; seconds
    until it is given up, None for no end.
    """

    policy: str | None = None
    returns: str | None = None
    views: bool = False
    deadline: float | None = None

    @property
    def sent(self) -> int:
        """Return the policy of the arguments as the codec takes it."""
        return _NAMES[self.policy]

    @property
    def returned(self) -> int:
        """Return the policy of what comes back as it is written on the wire."""
        return _NAMES[self.returns] | (RETURNS_VIEWS if self.views else 0)
