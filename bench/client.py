"""Closed-loop HTTP load from a process of its own: N connections, one request in flight on each.

usage: client.py HOST PORT PATH BODYFILE CONNECTIONS WARM_S SECONDS
Prints one JSON line: requests, errors, seconds, latency percentiles in microseconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import uvloop


class Connection(asyncio.Protocol):
    """Sends the next request as soon as the last is answered, until the time is over."""

    def __init__(self, load: Load) -> None:
        self.load, self.buffer, self.sent = load, b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.sent = time.perf_counter_ns()
        self.transport.write(self.load.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self.buffer.find(b"content-length: ", 0, end) + 16
        if len(self.buffer) < end + 4 + int(self.buffer[at : self.buffer.find(b"\r", at)]):
            return
        now = time.perf_counter_ns()
        if not self.buffer.startswith(b"HTTP/1.1 200"):
            self.load.errors += 1
        if self.load.began <= self.sent and now <= self.load.until:
            self.load.latencies.append(now - self.sent)
        self.buffer = b""
        if now < self.load.until:
            self.send()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.load.errors += exc is not None
        self.load.open -= 1
        if not self.load.open:
            self.load.done.set()


class Load:
    """What all connections share."""

    def __init__(self, request: bytes, warm_s: float, seconds: float) -> None:
        now = time.perf_counter_ns()
        self.request, self.errors, self.open = request, 0, 0
        self.began, self.until = now + int(warm_s * 1e9), now + int((warm_s + seconds) * 1e9)
        self.latencies: list[int] = []
        self.done = asyncio.Event()


async def main(host: str, port: str, path: str, body: str, count: str, warm_s: str, seconds: str) -> None:
    raw = Path(body).read_bytes()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(raw)}\r\n\r\n"
    )
    load = Load(head.encode() + raw, float(warm_s), float(seconds))
    loop = asyncio.get_running_loop()
    load.open = int(count)
    for _ in range(int(count)):
        await loop.create_connection(lambda: Connection(load), host, int(port))
    await load.done.wait()
    times = sorted(load.latencies)
    pick = {name: times[int(len(times) * q)] / 1e3 for name, q in (("p50_us", 0.5), ("p99_us", 0.99))}
    print(json.dumps({"requests": len(times), "errors": load.errors, "seconds": float(seconds)} | pick))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
