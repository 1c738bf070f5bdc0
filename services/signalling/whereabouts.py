"""Where the workspaces or sandboxes of tenants are: from the directory, or by asking every host.

The hosts know what there is; the directory only saves asking all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from chassis.errors import DeadlineExceeded, FairleadError, NotFound, Unavailable
from chassis.ids import derived_id, is_id, random_id
from chassis.limits import check_size
from fairlead_limits import table
from signalling.host import Host
from signalling.launch_release import Own
from signalling.ports import Hosts
from signalling.workspace_errors import HostAway, PageTokenInvalid

_log = logging.getLogger(__name__)
_REMEMBERED = 4096
_CALL_SECONDS = 0.02
_Answer = TypeVar("_Answer")
_Found = TypeVar("_Found")


class Directory(Protocol):
    """Which host holds what; a memory, never a truth: the hosts can be asked."""

    async def claim_key(self, tenant: str, key: str, host_id: str, /) -> str:
        """Keep the host of an idempotency key; return the one that was kept before, if there is."""
        ...

    async def host_of_key(self, tenant: str, key: str, /) -> str:
        """Return the host of an idempotency key; empty when it is not known."""
        ...

    async def put(self, tenant: str, what: str, host_id: str, /) -> None:
        """Keep where something is."""
        ...

    async def host_of(self, tenant: str, what: str, /) -> str:
        """Return where something is; empty when it is not known."""
        ...


class Whereabouts(Generic[_Found]):
    """Where the things of one kind are (`prefix` is that of their ids).

    `get` asks one host for one of them, `not_found` makes the error of an id that nobody knows.
    """

    def __init__(
        self,
        *,
        prefix: str,
        directory: Directory,
        hosts: Hosts,
        own: Own,
        id_key: bytes,
        get: Callable[[Host, str, str], Awaitable[_Found]],
        not_found: Callable[[str], NotFound],
    ) -> None:
        self._prefix = prefix
        self._directory = directory
        self._hosts = hosts
        self._own = own
        self._id_key = id_key
        self._get = get
        self._not_found = not_found
        self._places: OrderedDict[tuple[str, str], str] = OrderedDict()

    def key(self, tenant: str, what: str, key: str) -> str:
        """Return the key that a host is given: never one of a launch, which are launch ids."""
        return derived_id("key", tenant, what, key, key=self._id_key) if key else random_id("key")

    async def placed(self, tenant: str, key: str, choose: Callable[[], Awaitable[Host]]) -> Host:
        """Return the host that a key belongs to, which is always the same; `choose` a new one's."""
        known = self._hosts.find(self._places.get((tenant, key), ""))
        if known is not None:
            return known
        host = await choose()
        if len(self._hosts.all()) > 1:
            host = await self._claimed(tenant, key, host)
        else:  # Nothing can come of it but this host, and the caller need not wait.
            self._own(self._claim_soon(tenant, key, host))
        self._remember(tenant, key, host)
        return host

    async def hosts_of_key(self, tenant: str, key: str) -> Sequence[Host]:
        """Return the host that a key belongs to; all of them where it is not known."""
        host_id = self._places.get((tenant, key))
        if host_id is None:
            try:
                host_id = await self._directory.host_of_key(tenant, key)
            except FairleadError:
                host_id = ""
        known = self._hosts.find(host_id)
        return self._hosts.all() if known is None else [known]

    def note(self, tenant: str, what: str, host: Host) -> None:
        """Tell the directory where something is; nobody waits for it."""
        self._remember(tenant, what, host)
        self._own(self._put(tenant, what, host))

    async def find(self, tenant: str, what: str) -> Host:
        """Return the host of something; where the directory has lost it, find it by asking all."""
        if not is_id(self._prefix, what):
            raise self._not_found(what)
        host_id = self._places.get((tenant, what), "")
        if not host_id:
            try:
                host_id = await self._directory.host_of(tenant, what)
            except FairleadError:
                host_id = ""
        if not host_id:
            return await self._ask_all(tenant, what)
        host = self._hosts.find(host_id)
        if host is None:
            raise HostAway
        return host

    async def ask(
        self, tenant: str, what: str, ask: Callable[[Host], Awaitable[_Answer]]
    ) -> _Answer:
        """Ask the host of something."""
        host = await self.find(tenant, what)
        try:
            return await ask(host)
        except NotFound:
            raise self._not_found(what) from None

    async def page(
        self,
        page_size: int,
        page_token: str,
        ask: Callable[[Host, int], Awaitable[tuple[Sequence[_Found], bool]]],
        id_of: Callable[[_Found], str],
    ) -> tuple[Sequence[_Found], str, Sequence[str]]:
        """Return what all hosts hold, by id, the token of the next page, and the hosts that did not
        answer; page size 0 means 50. Raises Unavailable when none answered.
        """
        check_size(table.PAGE_SIZE, page_size)
        if page_token and not is_id(self._prefix, page_token):
            raise PageTokenInvalid
        size = page_size or table.DEFAULT_PAGE
        hosts = self._hosts.all()
        answers = await asyncio.gather(*(ask(host, size) for host in hosts), return_exceptions=True)
        pages, unanswered, failure = [], [], None
        for host, answer in zip(hosts, answers, strict=True):
            if not isinstance(answer, BaseException):
                pages.append(answer)
                continue
            if not isinstance(answer, (Unavailable, DeadlineExceeded)):
                raise answer
            unanswered.append(host.host_id)
            failure = failure or answer
        if failure is not None and not pages:
            raise failure
        found = sorted((each for page, _ in pages for each in page), key=id_of)
        more = len(found) > size or any(rest for _, rest in pages)
        token = id_of(found[:size][-1]) if more and found else ""
        return found[:size], token, unanswered

    def _remember(self, tenant: str, what: str, host: Host) -> None:
        self._places[tenant, what] = host.host_id
        self._places.move_to_end((tenant, what))
        while len(self._places) > _REMEMBERED:
            self._places.popitem(last=False)

    async def _claimed(self, tenant: str, key: str, host: Host) -> Host:
        """Return the host that the directory has for a key; from now on `host`, if it had none."""
        try:
            kept = await self._directory.claim_key(tenant, key, host.host_id)
        except FairleadError:
            _log.warning("other replicas do not know where a key belongs")
            return host
        return self._hosts.find(kept) or host

    async def _claim_soon(self, tenant: str, key: str, host: Host) -> None:
        """Claim when the call that the caller waits for is under way."""
        await asyncio.sleep(_CALL_SECONDS)
        await self._claimed(tenant, key, host)

    async def _put(self, tenant: str, what: str, host: Host) -> None:
        try:
            await self._directory.put(tenant, what, host.host_id)
        except FairleadError:
            _log.warning("where something is was not kept", extra={"subject": what})

    async def _ask_all(self, tenant: str, what: str) -> Host:
        """Return the host that knows something; raises `not_found` only when every host said that
        it does not.
        """
        hosts = self._hosts.all()
        answers = await asyncio.gather(
            *(self._get(host, tenant, what) for host in hosts), return_exceptions=True
        )
        for host, answer in zip(hosts, answers, strict=True):
            if not isinstance(answer, BaseException):
                self.note(tenant, what, host)
                return host
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, NotFound):
                raise answer
        raise self._not_found(what)
