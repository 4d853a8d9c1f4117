"""The sample owner of batch jobs: a real service that claims, works, and answers (DESIGN 7).

It shows what an owner has to do: claim pieces for a while, do each once however often it is called,
say truthfully whether there is more. And it can fail or dawdle on purpose. Run it with
``python -m crontask_server.sample_owner --port 13005``; each call is told as a line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import attrs
import grpc
from aiohttp import web
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from crontask_adapters.clock import SystemClock
from crontask_adapters.proto import crontask_batch_pb2 as pb
from crontask_server.signalling import signals

__all__ = ["METHODS", "SampleOwner", "Work"]

METHODS = (
    "/hyapp.user.v1.UserCronService/ProcessLoginIPRiskBatch",
    "/hyapp.user.v1.UserCronService/ProcessRegionRebuildBatch",
    "/hyapp.user.v1.UserCronService/CompensateMicOpenSessions",
    "/hyapp.activity.v1.ActivityCronService/ProcessMessageFanoutBatch",
)
"""The methods of the second source document. Over HTTP each is a path."""

Tell = Callable[[dict[str, Any]], None]


@attrs.define
class _Piece:
    """``token`` names the call that claimed it, ``until`` when the claim is over, in seconds."""

    due: float
    token: str = ""
    until: float = 0.0
    done: bool = False


@attrs.define
class Work:
    """The pieces of one method and app, as an owner's own table would hold them.

    ``doings`` counts how often a piece was really done: never more than once each.
    """

    pieces: list[_Piece] = attrs.Factory(list)
    doings: int = 0

    def add(self, count: int, now: float) -> None:
        self.pieces += [_Piece(due=now) for _ in range(count)]

    def claim(self, token: str, size: int, ttl: float, now: float) -> list[_Piece]:
        """Up to ``size`` pieces that nobody claims, claimed for ``ttl`` seconds."""
        free = [piece for piece in self.pieces if not piece.done and piece.until <= now][:size]
        for piece in free:
            piece.token, piece.until = token, now + ttl
        return free

    def finish(self, token: str, claimed: list[_Piece]) -> int:
        """Do what still is claimed by this call; how many. A piece whose claim was lost to a later
        call is that one's, so a repeated call does no harm."""
        mine = [piece for piece in claimed if piece.token == token and not piece.done]
        for piece in mine:
            piece.done = True
        self.doings += len(mine)
        self.pieces = [piece for piece in self.pieces if not piece.done]
        return len(mine)

    def has_more(self, now: float) -> bool:
        """Whether there is more to claim now: what another call has claimed does not count."""
        return any(not piece.done and piece.until <= now for piece in self.pieces)

    def left(self, now: float) -> tuple[int, int | None]:
        """(pieces left, age of the oldest in milliseconds)."""
        ages = [round((now - piece.due) * 1000) for piece in self.pieces]
        return len(ages), max(ages, default=None)


class _Refused(Exception):
    """The owner cannot be used now."""


@attrs.define(kw_only=True)
class SampleOwner:
    """``pieces`` are there at the start for each method and app, ``arrive`` more each second.

    A call takes ``seconds``. ``fail`` maps an app to how many of its calls are refused as
    unavailable (-1: all); ``slow`` maps an app to the seconds its calls take instead.
    """

    clock: SystemClock
    tell: Tell
    pieces: int = 250
    arrive: float = 0.0
    seconds: float = 0.02
    fail: dict[str, int] = attrs.Factory(dict)
    slow: dict[str, float] = attrs.Factory(dict)
    calls: Counter[str] = attrs.Factory(Counter)
    _work: dict[tuple[str, str], Work] = attrs.Factory(dict)
    _arrived: dict[tuple[str, str], float] = attrs.Factory(dict)

    def work(self, method: str, app: str) -> Work:
        """What there is to do, with what has arrived since it was last looked at."""
        key, now = (method, app), self.clock.elapsed()
        if key not in self._work:
            self._work[key], self._arrived[key] = Work(), now
            self._work[key].add(self.pieces, now)
        more = int((now - self._arrived[key]) * self.arrive)
        if more:
            self._work[key].add(more, now)
            self._arrived[key] += more / self.arrive
        return self._work[key]

    async def process(self, method: str, request: Any) -> Any:
        """Do one batch; a CronBatchResponse. Raises _Refused on purpose."""
        app = request.meta.app_code
        self.calls[app] += 1
        left = self.fail.get(app, 0)
        seen = {
            "method": method.rpartition("/")[2],
            "app_code": app,
            "run_id": request.run_id,
            "request_id": request.meta.request_id,
            "worker_id": request.worker_id,
            "caller": request.meta.caller,
        }
        if left and (left < 0 or self.calls[app] <= left):
            self._told("refused", seen)
            raise _Refused("this owner is down on purpose")
        work, token = self.work(method, app), request.meta.request_id
        ttl = request.lock_ttl_ms / 1000
        claimed = work.claim(token, request.batch_size, ttl, self.clock.elapsed())
        self._told("began", {**seen, "claimed": len(claimed)})
        await self.clock.sleep(self.slow.get(app, self.seconds))
        processed = work.finish(token, claimed)
        now = self.clock.elapsed()
        backlog, oldest = work.left(now)
        self._told("done", {**seen, "processed": processed, "backlog": backlog})
        return pb.CronBatchResponse(
            claimed_count=len(claimed),
            processed_count=processed,
            success_count=processed,
            failure_count=0,
            has_more=work.has_more(now),
            backlog=backlog,
            oldest_pending_age_ms=oldest,
        )

    def _told(self, event: str, seen: dict[str, Any]) -> None:
        at: datetime = self.clock.now()
        self.tell({"event": event, "at": at.isoformat(), **seen})

    # -- serving -------------------------------------------------------------------------------
    async def serve_grpc(self, host: str, port: int) -> tuple[Any, int]:
        """Listen for gRPC; the server, and its port."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Methods(self),))
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        bound = server.add_insecure_port(f"{host}:{port}")
        await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        await server.start()
        return server, bound

    async def serve_http(self, host: str, port: int) -> tuple[web.AppRunner, int]:
        """Listen for HTTP; the runner, and its port."""
        app = web.Application()
        for method in METHODS:
            app.router.add_post(method, self._post)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        await site.start()
        return runner, int(runner.addresses[0][1])

    async def _post(self, http: web.Request) -> web.Response:
        body = await http.json()
        meta = pb.RequestMeta(**body.pop("meta"))
        try:
            reply = await self.process(http.path, pb.CronBatchRequest(meta=meta, **body))
        except _Refused as error:
            return web.json_response({"error": str(error)}, status=503)
        names = [field.name for field in reply.DESCRIPTOR.fields]
        return web.json_response({name: getattr(reply, name) for name in names})


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The four methods, and no generic one."""

    def __init__(self, owner: SampleOwner) -> None:
        self._owner = owner

    def service(self, details: Any) -> Any:
        method = details.method
        if method not in METHODS:
            return None

        async def answer(request: Any, context: Any) -> Any:
            try:
                return await self._owner.process(method, request)
            except _Refused as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=pb.CronBatchRequest.FromString,
            response_serializer=pb.CronBatchResponse.SerializeToString,
        )


def _pairs(texts: list[str]) -> dict[str, float]:
    pairs = (text.partition(":") for text in texts)
    return {name: float(number or -1) for name, _, number in pairs}


def _tell(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


async def _serve(args: argparse.Namespace) -> None:
    owner = SampleOwner(
        clock=SystemClock(),
        tell=_tell,
        pieces=args.pieces,
        arrive=args.arrive,
        seconds=args.seconds,
        fail={name: int(count) for name, count in _pairs(args.fail).items()},
        slow=_pairs(args.slow),
    )
    server, port = await owner.serve_grpc(args.host, args.port)
    runner, http_port = await owner.serve_http(args.host, args.http_port)
    _tell({"event": "listening", "port": port, "http_port": http_port})
    asked = asyncio.Event()
    with signals(asked.set):
        await asked.wait()
    await server.stop(grace=1)
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser("sample_owner", description="A sample owner of batch jobs.")
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=13_005, help="of gRPC; 0 takes a free one")
    add("--http-port", type=int, default=0, help="of HTTP; 0 takes a free one")
    add("--pieces", type=int, default=250, help="work at the start, for each method and app")
    add("--arrive", type=float, default=0.0, help="pieces that come each second")
    add("--seconds", type=float, default=0.02, help="that a call takes")
    add("--fail", action="append", default=[], metavar="APP[:TIMES]", help="refuse its calls")
    add("--slow", action="append", default=[], metavar="APP:SECONDS", help="take so long instead")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
