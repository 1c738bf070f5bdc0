"""The REST application: routes, errors and the OpenAPI document, with what every request passes
first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp

from chassis.errors import FairleadError
from signalling.api_keys import ApiKeys
from signalling.batch_rest_api import batch_router
from signalling.docs_page import DOCS_HEADERS, docs_page
from signalling.edge_rest_api import BodyLimit, FaultBarrier, KeyGate, RequestIds
from signalling.event_stream import EventStreams
from signalling.executions_rest_api import Executions, OutputLine, executions_router
from signalling.file_ports import Files
from signalling.files_rest_api import WatchLine, files_router
from signalling.idempotency_rest_api import IdempotentMutations
from signalling.kept_answers import KeptAnswers
from signalling.launches_rest_api import Launches, launches_router
from signalling.mesh_rest_api import Check, Gateways, Hosts, health_router, mesh_router
from signalling.objects_rest_api import Objects, objects_router
from signalling.open_calls import OpenCalls
from signalling.openapi_texts import EXAMPLES, FIELDS, PARAMETERS, PREFACE
from signalling.problems import (
    Problem,
    on_fairlead_error,
    on_http_error,
    on_invalid_request,
)
from signalling.rate_limits import RateLimits
from signalling.rest_bodies import EventAnswer
from signalling.rest_parameters import KnownQueries
from signalling.sandboxes_rest_api import Sandboxes, sandboxes_router
from signalling.session_bodies import SessionLine
from signalling.session_ports import Sessions
from signalling.sessions_rest_api import session_watch_router, sessions_router
from signalling.snapshots_rest_api import UPLOAD_PATH, Uploads, snapshots_router
from signalling.terminal_rest_api import Terminals, resize_router, terminal_router
from signalling.workspaces_rest_api import Workspaces, workspaces_router

_KIB = 1024
BODY_BYTES = 64 * _KIB
# What is larger: changes of 256 KiB in base64 beside arguments and environment, files in base64,
# descriptions of 64 KiB and allow lists in JSON. What is streamed is bounded by its route.
_BODY_LIMITS: tuple[tuple[re.Pattern[str], int | None], ...] = tuple(
    (re.compile(pattern, re.DOTALL), limit)
    for pattern, limit in (
        (rf"POST {UPLOAD_PATH}|PUT /v1/sandboxes/[^/]+/files/.*", None),
        (r"POST /v1/launches", 768 * _KIB),
        (r"POST /v1/workspaces", 512 * _KIB),
        (r"POST /v1/sandboxes/[^/]+/batch", 1024 * _KIB),
        (r"POST /v1/sandboxes/[^/]+/executions", 384 * _KIB),
        (r"POST /v1/executions/[^/]+/stdin", 384 * _KIB),
        (r"POST /v1/sessions/.+/(offer|restart)|POST /v1/sandboxes", 128 * _KIB),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestParts:
    """The use cases behind the routes."""

    launches: Launches
    executions: Executions
    files: Files
    terminals: Terminals
    objects: Objects
    uploads: Uploads
    workspaces: Workspaces
    sandboxes: Sandboxes
    sessions: Sessions
    hosts: Hosts
    gateways: Gateways
    checks: Mapping[str, Check]
    answers: KeptAnswers


def rest_application(
    parts: RestParts,
    *,
    keys: ApiKeys,
    calls: OpenCalls,
    limits: RateLimits,
    streams: EventStreams,
    traced: Callable[[ASGIApp], ASGIApp],
) -> ASGIApp:
    """Return the application as it is served; `traced` puts its spans around it."""
    app: ASGIApp = IdempotentMutations(rest_routes(parts, streams), answers=parts.answers)
    app = BodyLimit(app, default=BODY_BYTES, limits=_BODY_LIMITS, charges=limits)
    app = FaultBarrier(KeyGate(app, keys=keys, calls=calls, limits=limits))
    return RequestIds(traced(app))


def rest_routes(parts: RestParts, streams: EventStreams) -> FastAPI:
    """Return the routes alone, with their OpenAPI document."""
    app = _Routes(
        title="Fairlead",
        version=version("fairlead"),
        description=PREFACE,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        exception_handlers={
            FairleadError: on_fairlead_error,
            HTTPException: on_http_error,
            RequestValidationError: on_invalid_request,
        },
    )
    # Their routes are the application's own: a router that is included is asked twice for each
    # request. What is asked for most often comes first.
    for router in (
        launches_router(parts.launches, streams),
        sessions_router(parts.sessions, streams),
        session_watch_router(parts.sessions),
        snapshots_router(parts.uploads),
        workspaces_router(parts.workspaces),
        sandboxes_router(parts.sandboxes),
        executions_router(parts.executions, streams),
        batch_router(parts.executions),
        resize_router(parts.terminals),
        terminal_router(parts.terminals),
        objects_router(parts.objects),
        files_router(parts.files, streams),
        mesh_router(parts.hosts, parts.gateways),
        health_router(parts.checks),
        _documents(app),
    ):
        app.router.routes.extend(router.routes)
    return app


class _Routes(FastAPI):
    """The framework without what stands around its routes for things that are not used here."""

    def build_middleware_stack(self) -> ASGIApp:
        """Answer expected errors; what nobody expected is `FaultBarrier`'s."""
        return ExceptionMiddleware(
            AsyncExitStackMiddleware(KnownQueries(self.router)),
            handlers=self.exception_handlers,
        )


def _operation_ids(app: FastAPI) -> dict[tuple[str, str], str]:
    """Return the names of all endpoints as generators of clients have them (`createLaunch`), by
    path and method.
    """
    found: dict[tuple[str, str], str] = {}
    for route in app.routes:
        if isinstance(route, APIRoute):
            first, *rest = route.name.split("_")
            name = first + "".join(word.capitalize() for word in rest)
            found |= {(route.path_format, each.lower()): name for each in route.methods or ()}
    return found


def _documents(app: FastAPI) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @cache
    def document() -> dict[str, object]:
        return _openapi_of(app)

    @router.get("/openapi.json")
    async def openapi() -> JSONResponse:
        return JSONResponse(document())

    @router.get("/docs")
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(document()), headers=DOCS_HEADERS)

    return router


def _openapi_of(app: FastAPI) -> dict[str, object]:
    """Return the document, with our problems in place of the framework's own validation error."""
    document: dict[str, object] = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    match document:
        case {"components": dict(components), "paths": dict(paths)}:
            schemas = components["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            for model in (Problem, EventAnswer, OutputLine, WatchLine, SessionLine):
                schema = model.model_json_schema(
                    ref_template="#/components/schemas/{model}", mode="serialization"
                )
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
            for name, schema in schemas.items():
                for field, described in schema.get("properties", {}).items():
                    described.setdefault("description", FIELDS.get(field, ""))
                if name in EXAMPLES:
                    schema["examples"] = [EXAMPLES[name]]
            components["securitySchemes"] = {
                "HTTPBearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, `flk_…`.",
                }
            }
            names = _operation_ids(app)
            for path, operations in paths.items():
                for method, operation in operations.items():
                    operation["operationId"] = names[path, method]
                    operation["responses"].pop("422", None)
                    for parameter in operation.get("parameters", ()):
                        text, example = PARAMETERS.get(parameter["name"], ("", ""))
                        if parameter["in"] == "path" and text:
                            parameter |= {"description": text, "example": example}
                    if path.startswith("/v1/"):  # what the key gate asks a key for
                        operation["security"] = [{"HTTPBearer": []}]
    return document
