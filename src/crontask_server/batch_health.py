"""Standard gRPC health on a port of its own: that, and nothing else (DESIGN 7)."""

from __future__ import annotations

import socket
from typing import Any

import attrs
import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from crontask_core.errors import Unavailable

__all__ = ["GrpcHealth"]

_NAMES = ("", "crontask")
_OPTIONS = (("grpc.so_reuseport", 0),)


@attrs.define
class GrpcHealth:
    """A listening health server; ``port`` is the one it listens on."""

    port: int
    _server: Any
    _servicer: Any

    @classmethod
    async def open(cls, host: str, port: int) -> GrpcHealth:
        """Listen, saying NOT_SERVING until told. Raises Unavailable (PORT_IN_USE)."""
        _probe(host, port)
        server = grpc.aio.server(options=_OPTIONS)
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        shown = f"[{host}]" if ":" in host else host
        try:
            bound = server.add_insecure_port(f"{shown}:{port}")
        except RuntimeError as error:
            raise _taken(host, port, error) from None
        found = cls(bound, server, servicer)
        await found.tell(False)
        await server.start()
        return found

    async def tell(self, serving: bool) -> None:
        """Say how this process is, to those who ask and to those who watch."""
        status = health_pb2.HealthCheckResponse.ServingStatus
        wanted = status.SERVING if serving else status.NOT_SERVING
        for name in _NAMES:
            await self._servicer.set(name, wanted)

    async def close(self) -> None:
        await self._server.stop(grace=0.2)


def _probe(host: str, port: int) -> None:
    """Find a taken port before gRPC does, which would write lines of its own about it."""
    try:
        socket.create_server((host, port), family=_family(host)).close()
    except OSError as error:
        raise _taken(host, port, error) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _taken(host: str, port: int, error: Exception) -> Unavailable:
    return Unavailable(
        f"port {port} on {host} cannot be listened on: {error}",
        code="PORT_IN_USE",
        field="batch.grpc_health_port",
        received=port,
        hint="Stop the other program, choose another port, or 0 for no gRPC health.",
        example="0",
    )
