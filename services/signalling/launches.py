"""Finds launches: in memory where this replica runs them, else in the store. What sessions see of
launches.
"""

from __future__ import annotations

from collections.abc import Sequence

from chassis.clock import Clock
from chassis.errors import Unavailable
from chassis.ids import is_id
from chassis.limits import check_size
from fairlead_limits import table
from signalling.gateway import Meeting
from signalling.host import Host
from signalling.launch import Launch
from signalling.launch_errors import LaunchNotFound, LaunchNotHeld
from signalling.launch_mirror import LaunchMirror
from signalling.launch_record import ExecutionPlace, LaunchRecord
from signalling.live_launch import LiveLaunch
from signalling.ports import Hosts, LaunchStore, Sandboxes
from signalling.session_ports import Reached


class Launches:
    """The launches of all tenants; every call names the tenant that asks."""

    def __init__(
        self,
        *,
        mirror: LaunchMirror,
        store: LaunchStore,
        hosts: Hosts,
        sandboxes: Sandboxes,
        clock: Clock,
    ) -> None:
        self._mirror = mirror
        self._store = store
        self._hosts = hosts
        self._sandboxes = sandboxes
        self._clock = clock

    def live(self, tenant: str, launch_id: str) -> LiveLaunch | None:
        """Return a launch that this replica runs; raises LaunchNotFound when it is another
        tenant's.
        """
        live = self._mirror.live(launch_id)
        if live is not None and live.tenant != tenant:
            raise LaunchNotFound(launch_id)
        return live

    async def record(self, tenant: str, launch_id: str) -> LaunchRecord:
        """Return a launch's record; raises LaunchNotFound."""
        if not is_id("lch", launch_id):
            raise LaunchNotFound(launch_id)
        live = self.live(tenant, launch_id)
        record = live.record if live is not None else await self._store.get(tenant, launch_id)
        if record is None:
            raise LaunchNotFound(launch_id)
        return record

    async def get(self, tenant: str, launch_id: str) -> Launch:
        """Return a launch, which may not hold a sandbox (yet); raises LaunchNotFound."""
        return (await self.record(tenant, launch_id)).launch

    async def page(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Launch], str]:
        """Return launches, newest first, and the token of the next page; 0 means 50 of them."""
        check_size(table.PAGE_SIZE, page_size)
        records, following = await self._store.page(
            tenant, page_size or table.DEFAULT_PAGE, page_token
        )
        launches = []
        for record in records:
            live = self._mirror.live(record.launch_id)
            launches.append(record.launch if live is None else live.launch)
        return launches, following

    async def user_of(self, tenant: str, workspace_id: str) -> str:
        """Return the id of the launch that has not given a workspace back; empty when none is known
        to, also while the store is away. One whose lease ended has it only while it runs here:
        elsewhere, whoever ran it may be gone.
        """
        for live in self._mirror.all():
            if live.tenant == tenant and _works_in(live.launch, workspace_id):
                return live.launch_id
        token = ""
        try:
            while True:
                records, token = await self._store.page(tenant, table.PAGE_SIZE.count, token)
                for record in records:
                    is_here = self._mirror.live(record.launch_id) is not None
                    if is_here or not _works_in(record.launch, workspace_id):
                        continue
                    ends = record.launch.expires_at
                    if ends is None or ends > self._clock.now():
                        return record.launch_id
                if not token:
                    return ""
        except Unavailable:
            return ""

    async def reached(self, tenant: str, launch_id: str) -> Reached:
        """Say what sessions may reach of a launch; raises LaunchNotFound."""
        record = await self.record(tenant, launch_id)
        launch = record.launch
        return Reached(
            has_sandbox=bool(launch.workspace_id and launch.sandbox_id),
            is_over=launch.released_at is not None,
            traceparent=record.traceparent,
        )

    def traceparent(self, tenant: str, launch_id: str) -> str:
        """Return the span of a launch's run; empty where the launch is not in memory here."""
        live = self._mirror.live(launch_id)
        return live.record.traceparent if live is not None and live.tenant == tenant else ""

    async def open_port(self, tenant: str, launch_id: str, port: int, meeting: Meeting) -> None:
        """Have the worker bring one connection to a gateway; raises LaunchNotFound, LaunchNotHeld
        and what the worker refuses.
        """
        record = await self.record(tenant, launch_id)
        if not record.launch.held:
            raise LaunchNotHeld(launch_id)
        await self._sandboxes.open_port(
            self.host_of(record),
            tenant=tenant,
            sandbox_id=record.launch.sandbox_id,
            port=port,
            meeting=meeting,
        )

    def host_of(self, record: LaunchRecord) -> Host:
        """Return a launch's host, with the addresses that it has now where they are known."""
        return self._hosts.find(record.host.host_id) or record.host

    def place_of_sandbox(self, sandbox_id: str) -> ExecutionPlace | None:
        """Return where a sandbox of a launch in memory is."""
        for live in self._mirror.all():
            if live.launch.sandbox_id == sandbox_id:
                return ExecutionPlace(live.tenant, self.host_of(live.record), sandbox_id)
        return None

    def workspace_of_sandbox(self, sandbox_id: str) -> str:
        """Return the workspace of the launch in memory that holds a sandbox; empty without one."""
        for live in self._mirror.all():
            launch = live.launch
            if launch.sandbox_id == sandbox_id and launch.released_at is None:
                return launch.workspace_id
        return ""

    def place_of_execution(self, execution_id: str) -> ExecutionPlace | None:
        """Return where the command of a launch in memory runs."""
        for live in self._mirror.all():
            if live.launch.execution_id == execution_id:
                host = self.host_of(live.record)
                return ExecutionPlace(live.tenant, host, live.launch.sandbox_id)
        return None


def _works_in(launch: Launch, workspace_id: str) -> bool:
    return launch.workspace_id == workspace_id and launch.released_at is None
