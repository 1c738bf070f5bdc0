"""The child's end of a link: serves the parent, and shows the caller's objects as mirrors."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from membrane.bonds import Link, LinkBond
from membrane.builtin_types import BUILTINS_BY_NAME
from membrane.calls import CallOptions
from membrane.descriptions import ClassDescription
from membrane.errors import ProtocolError, RemoteError
from membrane.forwarding import REFUSED
from membrane.frames import GET
from membrane.mirrors import mirror_class
from membrane.operations import Operations
from membrane.policies import Policies, checked_policy
from membrane.rehearsing import rehearse
from membrane.remote_errors import missing

if TYPE_CHECKING:
    from membrane.fittings import Fittings


class GuestBond(LinkBond):
    """The bond of a child."""

    def __init__(self, *, link: Link, policies: Policies, numeric: bool) -> None:
        super().__init__(link=link, policies=policies, numeric=numeric)
        self.serve = Operations(bond=self).serve

    def request(
        self,
        op: int,
        target: int,
        name: str,
        extra: object,
        values: Sequence[object],
        options: CallOptions | None = None,
    ) -> tuple[object, list[object]]:
        """Ask the caller; an attribute that it refuses is missing here, as libraries that look for
        one expect.
        """
        try:
            return super().request(op, target, name, extra, values, options)
        except RemoteError as fault:
            if op != GET or fault.remote_type != REFUSED:
                raise
            raise missing(fault) from None

    def make_class(self, description: ClassDescription, bases: tuple[type, ...]) -> type:
        """Build the mirror of a class of the caller."""
        return mirror_class(description, bases, bond=self)


def prepare(link: Link) -> None:
    """Go through the first steps of a session that nobody has asked for yet."""
    rehearse(cast("Fittings", fit(link, ["value", [], True])))


def limit_memory(size: int) -> None:
    """Let this process have so many bytes of memory of its own (setrlimit(2), RLIMIT_DATA).

    RLIMIT_DATA counts what is private and writable: heaps, stacks and anonymous maps. RLIMIT_AS
    would count address space that is only reserved as well, gigabytes of it for allocators and
    numeric libraries, and a control group needs rights that a library's process seldom has.
    """
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        size = min(size, most)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def fit(link: Link, settings: object, *, has_numpy: bool = True) -> GuestBond:
    """Make the bond of a child's link; `settings` are those of `host.guest_settings`. Without
    `has_numpy` on both sides arrays go by handle.
    """
    match settings:
        case [str() as policy, list() as rules, bool() as numeric, *rest]:
            if rest and type(rest[0]) is int:
                limit_memory(rest[0])
            found = []
            for rule in cast("Sequence[list[str]]", rules):
                name, word = rule
                found.append((BUILTINS_BY_NAME[name], checked_policy(word)))
            policies = Policies(default=checked_policy(policy), rules=tuple(found))
            return GuestBond(link=link, policies=policies, numeric=numeric and has_numpy)
    raise ProtocolError("the settings of a child are a policy, rules and a flag")
