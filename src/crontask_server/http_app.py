"""The HTTP application: MCP at ``/mcp``, health, readiness, metrics (X-I1, X-I2).

MCP is stateless and answers in plain JSON: any replica may take any call, and a call under way
outlives the signal to stop. Host and Origin are always checked; ``/healthz`` and ``/readyz`` are
open, ``/metrics`` only with ``server.open_metrics`` or a token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import (
    AuthenticatedUser,
    BearerAuthBackend,
    RequireAuthMiddleware,
)
from mcp.server.auth.provider import TokenVerifier
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from crontask_adapters.settings import ServerSettings
from crontask_adapters.wiring import VERSION
from crontask_core.errors import CrontaskError
from crontask_server.identity import (
    AnyOf,
    StaticTokens,
    by_settings,
    by_token,
    tokens_required,
)
from crontask_server.mcp_server import Feed, McpFace

if TYPE_CHECKING:
    from crontask_adapters.wiring import App
    from crontask_server.batch_runtime import WithBatch
    from crontask_server.presence import Presence
    from crontask_server.runtime import Runtime

__all__ = ["HttpFace", "listen", "security"]

log = logging.getLogger("crontask.http")

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_STORE_WAIT = 2.0
_METRIC_SCOPES = frozenset({"read", "admin"})


def security(server: ServerSettings, host: str, port: int) -> TransportSecuritySettings:
    """What Host and Origin headers are taken: loopback, the address listened on, and the lists of
    the settings. A name without a port is taken with any port."""
    own = () if host in ("0.0.0.0", "::", *_LOOPBACK) else (host,)
    hosts = [*_LOOPBACK, *(f"[{name}]" if ":" in name else name for name in own)]
    allowed = [text for name in (*hosts, *server.allowed_hosts) for text in _any_port(name)]
    origins = [f"http://{name}:{port}" for name in hosts]
    return TransportSecuritySettings(
        allowed_hosts=list(dict.fromkeys(allowed)),
        allowed_origins=[*origins, *(o.rstrip("/") for o in server.allowed_origins)],
    )


def _any_port(name: str) -> tuple[str, ...]:
    bare = name.rpartition("]")[2] if name.startswith("[") else name
    if name.endswith(":*"):
        return (name[:-2], name)
    return (name,) if ":" in bare else (name, f"{name}:*")


@attrs.define(kw_only=True)
class HttpFace:
    """One HTTP application over an assembled crontask.

    ``stopping`` makes readiness fail while the rest goes on; ``feed`` holds the listening streams.
    Without ``mcp`` only health, readiness and metrics are served, for a worker.
    """

    app: App
    runtime: Runtime | Presence | WithBatch | None
    host: str
    port: int
    mcp: bool = True
    feed: Feed = attrs.field(factory=Feed)
    stopping: bool = False

    @property
    def tokens_required(self) -> bool:
        """Whether callers need a bearer token."""
        return tokens_required(self.app.settings.server)

    @property
    def allowed(self) -> TransportSecuritySettings:
        return security(self.app.settings.server, self.host, self.port)

    def starlette(self) -> Starlette:
        """The application; its lifespan runs the MCP side."""
        routes = [
            Route("/healthz", self._health, methods=["GET"]),
            Route("/readyz", self._ready, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]
        if not self.mcp:
            return Starlette(routes=routes, middleware=self._middleware())
        manager = StreamableHTTPSessionManager(
            self._face().server(),
            json_response=True,
            stateless=True,
            security_settings=self.allowed,
        )
        mcp = StreamableHTTPASGIApp(manager)
        guarded = RequireAuthMiddleware(mcp, []) if self.tokens_required else mcp
        return Starlette(
            routes=[Route("/mcp", guarded), *routes],
            middleware=self._middleware(),
            lifespan=lambda _: manager.run(),
        )

    def _face(self) -> McpFace:
        settings = self.app.settings
        return McpFace(
            tasks=self.app.tasks,
            caller=by_token if self.tokens_required else by_settings(settings.identity),
            version=VERSION,
            ignore=settings.server.ignore_arguments,
            feed=self.feed,
        )

    def _middleware(self) -> list[Middleware]:
        if not self.tokens_required:
            return []
        server = self.app.settings.server
        verifiers: list[TokenVerifier] = [StaticTokens(server.tokens)]
        if server.jwt.secret_file or server.jwt.public_key_file:
            from crontask_server.jwt_tokens import JwtTokens

            verifiers.append(JwtTokens(server.jwt))
        backend = BearerAuthBackend(AnyOf(verifiers))
        return [
            Middleware(AuthenticationMiddleware, backend=backend),
            Middleware(AuthContextMiddleware),
        ]

    async def _health(self, _request: Request) -> Response:
        """The process answers: nothing else is asked."""
        zones = self.app.tasks.data.zones
        return JSONResponse({"ok": True, "version": VERSION, "zone_data": zones})

    async def _ready(self, _request: Request) -> Response:
        """Whether this process should get traffic: store reachable, loops alive, not stopping."""
        parts = {"store": await self._store_answers(), "stopping": self.stopping}
        if self.runtime is not None:
            parts["loops"] = self.runtime.healthy()
        why = await self.app.tasks.outdated() if parts["store"] else ""
        good = all(parts[name] for name in parts if name != "stopping")
        ready = good and not self.stopping and not why
        told = {"ready": ready, **parts, **({"outdated": why} if why else {})}
        return JSONResponse(told, status_code=200 if ready else 503)

    async def _store_answers(self) -> bool:
        try:
            async with asyncio.timeout(_STORE_WAIT):
                await self.app.repo.horizon()
                await self.app.tasks.outdated()
        except (CrontaskError, TimeoutError) as error:
            log.warning("the store does not answer: %s", error)
            return False
        return True

    async def _metrics(self, request: Request) -> Response:
        refused = await self._guard(request)
        if refused is not None:
            return refused
        metrics = self.app.metrics
        if metrics is None:
            hint = "no metrics: install the extra, pip install 'crontask[metrics]'\n"
            return Response(hint, status_code=404, media_type="text/plain")
        body, kind = metrics.render()
        return Response(body, headers={"content-type": kind})

    async def _guard(self, request: Request) -> Response | None:
        """None when the request may see the inside of this installation (X-I2)."""
        if self.app.settings.server.open_metrics:
            return None
        refused = await TransportSecurityMiddleware(self.allowed).validate_request(request)
        if refused is not None or not self.tokens_required:
            return refused
        user = request.user
        if not isinstance(user, AuthenticatedUser):
            needed = {"www-authenticate": "Bearer"}
            return Response("a bearer token is needed\n", status_code=401, headers=needed)
        if not _METRIC_SCOPES & set(user.scopes):
            return Response("the scope read or admin is needed\n", status_code=403)
        return None


def listen(app: App, feed: Feed) -> None:
    """Let ``feed`` hear what the use cases and the engine of ``app`` do."""
    from crontask_adapters.observers import Observers

    holders: Sequence[object] = (app.tasks, *([app.engine] if app.engine else []))
    for holder in holders:
        holder.observer = Observers((holder.observer, feed))  # type: ignore[attr-defined]
