"""An agent for benchmarks: accepts every callback at once, as cheaply as Python can.

Prints its port, serves until its input closes, and answers ``GET /`` with what it has seen:
count, distinct fires, first and last arrival (Unix seconds), and lateness in milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import Any

FIRE = re.compile(rb'"fire_id":\s*"([0-9a-f-]{36})"')
STAMP = re.compile(rb'"fire_time":\s*"([^"]+)"')
ANSWER = b'{"task_run_id":"run-%d"}'


class Seen:
    """Everything that arrived."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.fires: set[bytes] = set()
        self.fire_times: list[bytes] = []

    def summary(self) -> dict[str, Any]:
        from datetime import datetime

        late = sorted(
            (at - datetime.fromisoformat(stamp.decode()).timestamp()) * 1000
            for at, stamp in zip(self.arrivals, self.fire_times, strict=True)
            if stamp
        )
        return {
            "count": len(self.arrivals),
            "distinct": len(self.fires),
            "first": self.arrivals[0] if self.arrivals else 0,
            "last": self.arrivals[-1] if self.arrivals else 0,
            "late_ms": {
                name: late[min(len(late) - 1, int(len(late) * share))]
                for name, share in (("min", 0), ("p50", 0.5), ("p99", 0.99), ("max", 1))
                if late
            },
        }


class Connection(asyncio.Protocol):
    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.buffer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            mark = head.find(b"content-length:")
            length = int(head[mark + 15 :].split(b"\r\n", 1)[0]) if mark >= 0 else 0
            total = end + 4 + length
            if len(self.buffer) < total:
                return
            body, self.buffer = self.buffer[end + 4 : total], self.buffer[total:]
            self.answer(head, body)

    def answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"get"):
            text = json.dumps(self.seen.summary()).encode()
        elif head.startswith(b"delete"):
            self.seen.__init__()  # type: ignore[misc]
            text = b"{}"
        else:
            self.seen.arrivals.append(time.time())
            fire = FIRE.search(body)
            stamp = STAMP.search(body)
            self.seen.fires.add(fire.group(1) if fire else b"")
            self.seen.fire_times.append(stamp.group(1) if stamp else b"")
            text = ANSWER % len(self.seen.arrivals)
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (len(text), text)
        )


async def main() -> None:
    seen = Seen()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(seen), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
