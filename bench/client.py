"""HTTP load from a process of its own: closed loop, or open loop at a fixed rate.

Open loop: the times of all requests are drawn before the first one (Poisson, fixed seed) and a request's
latency counts from the time it was due, not from when a connection was free: a server that stalls pays
for everybody who would have come in the meantime. How late the client itself was is told beside it.

usage: client.py PORT PATH BODYFILE CONNECTIONS SECONDS [--warm S] [--rate R] [--head N]
Prints one JSON line: requests, errors, seconds, latency and lag in microseconds. Loopback only.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import gc
import json
import random
import select
import socket
import time
from pathlib import Path

QUANTILES = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99, "p999_us": 0.999}
PATIENCE_NS = 10 * 10**9  # limit: how long answers are awaited after the last request
RECEIVE = 1 << 18


class Connection:
    """One keep-alive connection with at most one request in flight."""

    def __init__(self, port: int, request: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.request, self.rest, self.buffer, self.due = request, memoryview(b""), b"", 0

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, due: int) -> None:
        self.due, self.rest = due, memoryview(self.request)
        self.push()

    def push(self) -> None:
        """Send as much as fits."""
        try:
            while self.rest:
                self.rest = self.rest[self.socket.send(self.rest) :]
        except BlockingIOError:
            pass

    def take(self) -> bool | None:
        """Read; None while the answer is not whole, else whether it was a 200.

        Raises:
            ConnectionError: The server closed the connection.
        """
        data = self.socket.recv(RECEIVE)
        if not data:
            raise ConnectionError("closed")
        self.buffer = self.buffer + data if self.buffer else data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = self.buffer[:end].lower()
        at = head.find(b"content-length:")
        if at < 0:
            raise ConnectionError("an answer without content-length")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0])
        if len(self.buffer) < end + 4 + length:
            return None
        good = head.startswith(b"http/1.1 200")
        self.buffer = b""
        return good


class Load:
    """What was asked for, and what came of it."""

    def __init__(self, connections: list[Connection], chosen: argparse.Namespace) -> None:
        self.idle, self.busy = list(connections), set[Connection]()
        self.latencies: list[int] = []
        self.lags: list[int] = []
        self.errors = 0
        begin = time.perf_counter_ns()
        self.counted = begin + int(chosen.warm * 1e9)
        self.until = self.counted + int(chosen.seconds * 1e9)
        self.due = self._schedule(begin, chosen) if chosen.rate else None
        self.waiting: collections.deque[int] = collections.deque()

    def _schedule(self, begin: int, chosen: argparse.Namespace) -> collections.deque[int]:
        generator, at, due = random.Random(chosen.seed), float(begin), collections.deque[int]()
        while (at := at + generator.expovariate(chosen.rate) * 1e9) < self.until:
            due.append(int(at))
        return due

    def run(self) -> None:
        while True:
            now = time.perf_counter_ns()
            self._begin(now)
            over = now >= self.until and not self.waiting and not self.due
            if (over and not self.busy) or now > self.until + PATIENCE_NS:
                break
            after = self.due[0] if self.due else max(self.until, now + 10**8)
            wait = max(0.0, (after - time.perf_counter_ns()) / 1e9)
            writing = [c for c in self.busy if c.rest]
            readable, writable, _ = select.select(self.busy, writing, [], wait)
            for connection in writable:
                connection.push()
            for connection in readable:
                self._hear(connection)
            if not self.busy and not self.idle:
                break  # the server closed every connection
        self.errors += len(self.busy) + len(self.waiting)

    def _begin(self, now: int) -> None:
        if self.due is None:
            while self.idle and now < self.until:
                self._send(self.idle.pop(), now)
            return
        while self.due and self.due[0] <= now:
            if self.idle and not self.waiting:
                self.lags.append(now - self.due[0])
            self.waiting.append(self.due.popleft())
        while self.waiting and self.idle:
            self._send(self.idle.pop(), self.waiting.popleft())

    def _send(self, connection: Connection, due: int) -> None:
        self.busy.add(connection)
        try:
            connection.send(due)
        except OSError:
            self._lose(connection)

    def _hear(self, connection: Connection) -> None:
        try:
            good = connection.take()
        except OSError:
            self._lose(connection)
            return
        if good is None:
            return
        now = time.perf_counter_ns()
        self.errors += not good
        if connection.due >= self.counted and (self.due is not None or now <= self.until):
            self.latencies.append(now - connection.due)
        self.busy.remove(connection)
        self.idle.append(connection)

    def _lose(self, connection: Connection) -> None:
        self.errors += 1
        self.busy.discard(connection)
        connection.socket.close()


def quantiles(times: list[int]) -> dict[str, float]:
    times = sorted(times) or [0]
    return {name: times[int(len(times) * q)] / 1e3 for name, q in QUANTILES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("port", type=int)
    parser.add_argument("path")
    parser.add_argument("body", type=Path)
    parser.add_argument("connections", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--warm", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second; 0: closed loop")
    parser.add_argument("--head", type=int, help="length of the JSON head before binary tensors")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    raw = chosen.body.read_bytes()
    kind = "application/json"
    if chosen.head:
        kind = f"application/octet-stream\r\ninference-header-content-length: {chosen.head}"
    head = (
        f"POST {chosen.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {kind}\r\n"
        f"content-length: {len(raw)}\r\n\r\n"
    )
    ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK: wake within a nanosecond, not within 50 us
    gc.disable()
    request = head.encode() + raw
    load = Load([Connection(chosen.port, request) for _ in range(chosen.connections)], chosen)
    load.run()
    told = {"requests": len(load.latencies), "errors": load.errors, "seconds": chosen.seconds}
    lag = quantiles(load.lags)
    print(
        json.dumps(
            told | quantiles(load.latencies) | {"lag_p50_us": lag["p50_us"], "lag_p99_us": lag["p99_us"]}
        )
    )


if __name__ == "__main__":
    main()
