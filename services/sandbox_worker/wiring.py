"""Builds the worker's objects: opened top-down, closed in reverse, also when the start fails."""

from __future__ import annotations

import json
import logging
import os
import resource
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict

import grpc

from chassis.announcement import Announcer
from chassis.clock import SystemClock
from chassis.ids import derived_id
from chassis.mesh_ports import ports_of
from chassis.redis_client import open_redis
from chassis.rpc_server import RpcServer, serve_grpc
from chassis.telemetry import start_metrics, start_telemetry, stop_metrics, stop_telemetry
from sandbox_worker import grpc_api
from sandbox_worker.batches import Batches
from sandbox_worker.brief_work import BriefWork
from sandbox_worker.disk_watch import DiskWatch
from sandbox_worker.executions import Executions
from sandbox_worker.files import Files
from sandbox_worker.grpc_api import SandboxServicer
from sandbox_worker.isolation.cgroups import Cgroups
from sandbox_worker.isolation.descendants import below
from sandbox_worker.isolation.overlay_trial import can_mount_overlay, why_root_stays
from sandbox_worker.isolation.process import ProcessIsolation
from sandbox_worker.isolation.wall_survey import survey_walls, walls_of
from sandbox_worker.isolation.walled import WalledIsolation
from sandbox_worker.janitor import Janitor
from sandbox_worker.journals.budget import Budgets
from sandbox_worker.journals.store import JournalStore
from sandbox_worker.network.network_changes import NetworkChanges
from sandbox_worker.network.opening import opened_networks
from sandbox_worker.object_host import MembraneHost
from sandbox_worker.objects import Objects
from sandbox_worker.port_carrier import PortCarrier
from sandbox_worker.ports import Isolation
from sandbox_worker.profile import default_limits
from sandbox_worker.profile_file import read_profiles
from sandbox_worker.record_store import HostState, RecordStore, SoleTenant
from sandbox_worker.sandbox_plans import SandboxPlans
from sandbox_worker.sandboxes import Sandboxes
from sandbox_worker.settings import Settings
from sandbox_worker.terminal_talks import TerminalTalks
from sandbox_worker.tracing import EgressCounter, TracedRuns, TracedSandboxes
from sandbox_worker.trees import HostTrees
from sandbox_worker.wire import execution_api, file_api, object_api
from sandbox_worker.wire.execution_api import ExecutionServicer
from sandbox_worker.wire.file_api import FileServicer
from sandbox_worker.wire.object_api import ObjectServicer

log = logging.getLogger(__name__)

_FILE_THREADS = 8
_SILENCE_SECONDS = 30.0
"""How long a file agent may say nothing, and a file request may wait for its turn."""


class SandboxWorker:
    """The running room."""

    def __init__(
        self,
        *,
        server: RpcServer,
        sandboxes: Sandboxes,
        executions: Executions,
        objects: Objects,
        address: str,
    ) -> None:
        self._server = server
        self._sandboxes = sandboxes
        self._executions = executions
        self._objects = objects
        self.address = address

    async def drain(self) -> None:
        """Take nothing new, and wait for what runs."""
        await self._server.drain()
        self._sandboxes.drain()
        self._objects.drain()
        await self._executions.drain()


def _allow_many_files() -> None:
    """Raise the soft limit of open files: a sandbox takes several, and one that shares this
    process's user could keep it from handing any out if it may have more (unix(7), ETOOMANYREFS).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[SandboxWorker]:
    """Build and start the worker."""
    _allow_many_files()
    async with AsyncExitStack() as stack:
        secret = settings.rpc_secret()
        provider = start_telemetry("sandbox-worker")
        stack.callback(stop_telemetry, provider)
        meters = start_metrics("sandbox-worker")
        stack.callback(stop_metrics, meters)
        root = settings.host_root / "sandboxes"
        state = HostState(root=root)
        stack.callback(state.close)
        epoch, id_key = state.next_epoch(), state.id_key()
        files = stack.enter_context(
            ThreadPoolExecutor(max_workers=_FILE_THREADS, thread_name_prefix="files")
        )
        clock = SystemClock()
        cgroups = await stack.enter_async_context(
            Cgroups(
                name=f"fairlead-{derived_id('hst', 'cgroups', key=id_key)[4:]}",
                epoch=epoch,
                work=BriefWork(executor=files, clock=clock),
            )
        )
        mounts_overlays = await can_mount_overlay(root)
        brief = BriefWork(executor=files, clock=clock)
        survey = await survey_walls(
            root, path=settings.path, first_uid=settings.uid_first, uids=settings.walled_uids
        )
        isolations: dict[str, Isolation] = {}
        if survey.stands:
            walled = WalledIsolation(
                survey=survey,
                path=settings.path,
                cgroups=cgroups,
                pool_size=settings.pool_size,
                clock=clock,
                host_id=settings.host_id,
                host_network=settings.walled_host_network,
            )
            isolations[walled.name] = await stack.enter_async_context(walled)
        else:
            log.warning("sandboxes cannot be walled here", extra={"cause": survey.reason})
        sole_tenant = SoleTenant(state=state, work=brief)
        is_root = os.geteuid() == 0
        why_root = ""
        if is_root:
            why_root = await why_root_stays(
                root, user=settings.process_uid, with_layers=mounts_overlays
            )
        process = ProcessIsolation(
            private_root=root / "private",
            path=settings.path,
            cgroups=cgroups,
            executor=files,
            sole_tenant=sole_tenant,
            user=settings.process_uid if is_root and not why_root else None,
            why_root=why_root,
        )
        await process.clean()  # Also of a life that offered it, where this one does not.
        if survey.stands and settings.expose_host_to_one_tenant and why_root:
            log.error("processes are not offered: they would be root", extra={"cause": why_root})
        elif not survey.stands or settings.expose_host_to_one_tenant:
            isolations[process.name] = await stack.enter_async_context(process)
        profiles = read_profiles(
            settings.profiles,
            defaults=default_limits(
                memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                processors=len(os.sched_getaffinity(0)),
                held=cgroups.controllers,
            ),
        )
        plans = SandboxPlans(isolations=isolations, profiles=profiles)
        networks = stack.enter_context(
            opened_networks(
                opened=settings.egress_allow,
                mesh_ports=ports_of(
                    settings.bind,
                    settings.redis_url,
                    *settings.mesh_addresses.split(","),
                ),
                most_each=settings.egress_connections,
                clock=clock,
                count=EgressCounter(meter=meters.get_meter("sandbox_worker")).count,
            )
        )
        trees = HostTrees(host_root=settings.host_root)
        sandboxes = Sandboxes(
            host_id=settings.host_id,
            id_key=id_key,
            epoch=epoch,
            plans=plans,
            networks=networks,
            records=RecordStore(root=root / "records", work=brief),
            trees=trees,
            clock=clock,
            most=settings.most_sandboxes,
            tombstone_seconds=settings.tombstone_seconds,
        )
        executions = Executions(
            sandboxes=sandboxes,
            journals=JournalStore(
                root=root / "journals",
                work=brief,
                most_bytes=settings.journal_bytes,
                budgets=Budgets(
                    sandbox=settings.journals_sandbox_bytes,
                    tenant=settings.journals_tenant_bytes,
                    host=settings.journals_host_bytes,
                    reserve=settings.journals_reserve_bytes,
                ),
            ),
            spans=TracedRuns(tracer_provider=provider),
            clock=clock,
            id_key=id_key,
            most_running=settings.most_executions,
            most_kept=settings.most_kept_executions,
            retention_seconds=settings.retention_seconds,
        )
        await sandboxes.recover()
        await executions.recover()
        ports = PortCarrier(sandboxes=sandboxes, terminals=TerminalTalks(executions=executions))
        stack.push_async_callback(ports.close)
        sandbox_servicer = SandboxServicer(
            sandboxes=sandboxes,
            traced=TracedSandboxes(sandboxes=sandboxes, tracer_provider=provider),
            ports=ports,
            changes=NetworkChanges(sandboxes=sandboxes, plans=plans, networks=networks),
        )

        file_work = Files(sandboxes=sandboxes, silence=_SILENCE_SECONDS, wait=_SILENCE_SECONDS)
        file_servicer = FileServicer(files=file_work)
        batches = Batches(
            sandboxes=sandboxes, executions=executions, files=file_work, id_key=id_key
        )
        execution_servicer = ExecutionServicer(executions=executions, batches=batches)
        objects = Objects(sandboxes=sandboxes, host=MembraneHost(executor=files), clock=clock)
        object_servicer = ObjectServicer(objects=objects)

        def register(server: grpc.aio.Server) -> None:
            sandbox_servicer.register(server)
            execution_servicer.register(server)
            file_servicer.register(server)
            object_servicer.register(server)

        server = await stack.enter_async_context(
            serve_grpc(
                bind=settings.bind,
                register=register,
                services=[each.SERVICE for each in (grpc_api, execution_api, file_api, object_api)],
                tracer_provider=provider,
                secret=secret,
                grace_seconds=1.0,
            )
        )
        # While the server still serves, so that watchers hear how their executions ended.
        stack.push_async_callback(executions.close)
        stack.push_async_callback(objects.close)
        stack.push_async_callback(batches.close)
        stack.push_async_callback(sandboxes.close)
        address = settings.advertise or server.address
        # Also where it is not offered, so that it can be said why.
        known_walls = {"walled": walls_of(survey), **plans.walls}
        walls = json.dumps(
            {name: [asdict(wall) for wall in walls] for name, walls in known_walls.items()}
        )
        limits = json.dumps({name: asdict(each.limits) for name, each in profiles.items()})
        redis = await stack.enter_async_context(
            open_redis(settings.redis_url, settings.redis_password())
        )
        await stack.enter_async_context(
            Announcer(
                redis=redis,
                key=f"fairlead:host:{settings.host_id}:sandbox",
                payload=lambda: {
                    "host_id": settings.host_id,
                    "address": address,
                    "epoch": str(epoch),
                    "isolation": ",".join(reversed(plans.names)),
                    "process_tenant": sole_tenant.name,
                    "walls": walls,
                    "profiles": ",".join(plans.profiles),
                    "limits": limits,
                    "overlay": "1" if mounts_overlays else "0",
                    "sandboxes": str(sandboxes.count),
                    "capacity": str(settings.most_sandboxes),
                    "draining": "1" if sandboxes.draining else "0",
                },
            )
        )
        await stack.enter_async_context(Janitor(sandboxes=sandboxes, executions=executions))
        await stack.enter_async_context(
            DiskWatch(sandboxes=sandboxes, trees=trees, executor=files, below=below)
        )
        yield SandboxWorker(
            server=server,
            sandboxes=sandboxes,
            executions=executions,
            objects=objects,
            address=address,
        )
