"""Clients that mean no good, against a real server, and one that does and must be served all the while.

``attack`` plays one phase after the other and notes the server's resident memory and what the good
client got. How many of each kind is the caller's choice.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PATH: Final = "/v2/models/credit/infer"
BODY: Final = (
    b'{"inputs": [{"name": "features", "shape": [1, 20], "datatype": "FP32", "data": ['
    + b", ".join([b"0.5"] * 20)
    + b"]}]}"
)
PAGE: Final = resource.getpagesize()
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def whole(body: bytes = BODY, *headers: str, path: str = PATH) -> bytes:
    """A well-formed request."""
    lines = [f"POST {path} HTTP/1.1", "host: here", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Outcome:
    """What was seen.

    Attributes:
        curve: Seconds since the start, phase, resident bytes.
        canary: Per phase: calls, failures, longest answer in milliseconds.
        opened: Connections that were open at once in the idle phase.
        phases: Seconds that each took.
        troubles: What the good client got instead of its answers.
    """

    curve: list[tuple[float, str, int]] = field(default_factory=list)
    canary: dict[str, dict[str, float]] = field(default_factory=dict)
    opened: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)


@dataclass
class Attack:
    """One run against a server.

    Attributes:
        port, grpc_port, pid: Of the server.
        idle: Connections that say nothing.
        slow: Connections that send heads or bodies without end.
        readers: Connections that ask much and read nothing.
        gone: Clients that leave in the middle.
        cases: Malformed requests over each door.
        hold_s: How long the slow ones are held.
    """

    port: int
    grpc_port: int
    pid: int
    idle: int = 200
    slow: int = 200
    readers: int = 20
    gone: int = 200
    cases: int = 300
    hold_s: float = 0.5
    seed: int = 7
    outcome: Outcome = field(default_factory=Outcome)
    _phase: str = "before"

    def run(self) -> Outcome:
        """Play all phases."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            asyncio.run(self._run())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return self.outcome

    async def _run(self) -> None:
        self._began = time.monotonic()
        self._random = random.Random(self.seed)
        watching = [asyncio.create_task(step()) for step in (self._canary, self._sample)]
        await asyncio.sleep(0.3)
        phases: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("idle", self._idle), ("slow heads", self._slow_heads), ("slow bodies", self._slow_bodies),
            ("no readers", self._no_readers), ("gone", self._gone), ("oversized", self._oversized),
            ("fuzz http", self._fuzz_http), ("fuzz grpc", self._fuzz_grpc),
        ]  # fmt: skip
        for name, step in phases:
            self._phase, began = name, time.monotonic()
            await step()
            self.outcome.phases[name] = time.monotonic() - began
        self._phase = "after"
        await asyncio.sleep(0.5)
        for task in watching:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # -- who watches ------------------------------------------------------------------------------

    async def _sample(self) -> None:
        while True:
            resident = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE
            self.outcome.curve.append((time.monotonic() - self._began, self._phase, resident))
            await asyncio.sleep(0.1)

    async def _canary(self) -> None:
        """One good client on a connection that stays."""
        connection = await self._open()
        try:
            while True:
                phase, began = self._phase, time.monotonic()
                good = await self._is_answered(*connection)
                seen = self.outcome.canary.setdefault(phase, {"calls": 0, "failed": 0, "longest_ms": 0.0})
                seen["calls"] += 1
                seen["failed"] += not good
                seen["longest_ms"] = max(seen["longest_ms"], (time.monotonic() - began) * 1000)
                if not good:
                    connection[1].transport.abort()
                    connection = await self._open()
                await asyncio.sleep(0.005)
        finally:
            connection[1].transport.abort()

    async def _is_answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            writer.write(whole())
            async with asyncio.timeout(30):  # wait_for of 3.11 loses a cancel that meets a finished read
                head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
        except (OSError, EOFError, TimeoutError) as error:
            self.outcome.troubles.append(f"{self._phase}: {type(error).__name__}")
            return False
        if not head.startswith(b"HTTP/1.1 200 "):
            self.outcome.troubles.append(f"{self._phase}: {body[:200]!r}")
            return False
        return True

    # -- who means no good ------------------------------------------------------------------------

    async def _open(self, port: int = 0) -> Connection:
        async with asyncio.timeout(10):
            return await asyncio.open_connection("127.0.0.1", port or self.port)

    async def _crowd(self, count: int, first: bytes = b"") -> list[Connection]:
        crowd: list[Connection] = []
        while len(crowd) < count:
            wave = [self._open() for _ in range(min(200, count - len(crowd)))]
            opened = await asyncio.gather(*wave, return_exceptions=True)
            good = [each for each in opened if not isinstance(each, BaseException)]
            for _, writer in good:
                writer.write(first)
            crowd += good
            if len(good) < len(wave):
                break  # no more to be had
        return crowd

    async def _leave(self, crowd: list[Connection]) -> None:
        for _, writer in crowd:
            writer.transport.abort()
        await asyncio.sleep(0.05)

    async def _idle(self) -> None:
        crowd = await self._crowd(self.idle)
        self.outcome.opened = sum(not reader.at_eof() for reader, _ in crowd)
        await asyncio.sleep(self.hold_s)
        await self._leave(crowd)

    async def _drip(self, first: bytes, piece: bytes) -> None:
        crowd = await self._crowd(self.slow, first)
        until = time.monotonic() + self.hold_s
        while time.monotonic() < until:
            for _, writer in crowd:
                writer.write(piece)
            await asyncio.sleep(0.1)
        await self._leave(crowd)

    async def _slow_heads(self) -> None:
        await self._drip(b"POST " + PATH.encode() + b" HTTP/1.1\r\nhost: here\r\nx: ", b"y")

    async def _slow_bodies(self) -> None:
        await self._drip(
            b"POST " + PATH.encode() + b" HTTP/1.1\r\nhost: here\r\ncontent-length: 60000\r\n\r\n{", b" "
        )

    async def _no_readers(self) -> None:
        """Each asks for large documents, and for answers, and takes none of them."""
        page = b"GET /openapi.json HTTP/1.1\r\nhost: here\r\n\r\n"
        crowd = await self._crowd(self.readers, (page + whole()) * 20)
        for _ in range(20):
            for _, writer in crowd:
                writer.write((page + whole()) * 20)
            await asyncio.sleep(0.01)
        await asyncio.sleep(self.hold_s)
        await self._leave(crowd)

    async def _gone(self) -> None:
        """Half leave with a whole request on its way, half in its middle, all with a reset."""
        for number in range(self.gone):
            with contextlib.suppress(OSError):
                _, writer = await self._open()
                raw: socket.socket = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                request = whole()
                writer.write(request if number % 2 else request[: self._random.randrange(20, len(request))])
                await asyncio.sleep(0)
                writer.transport.abort()

    async def _oversized(self) -> None:
        far = b"POST " + PATH.encode() + b" HTTP/1.1\r\nhost: here\r\n"
        piece = b"10000\r\n" + bytes(65_536) + b"\r\n"
        cases = [
            [far + b"content-length: 1099511627776\r\n\r\n", bytes(65_536)],
            [far + b"transfer-encoding: chunked\r\n\r\n", *[piece] * 64],
            [far + b"x: " + b"y" * 200_000],
            [b"GET /" + b"y" * 200_000],
            [far + b"".join(b"h%d: 1\r\n" % i for i in range(5_000)) + b"\r\n"],
            [far + b"content-encoding: gzip\r\ncontent-length: 60\r\n\r\n" + b"\x1f\x8b\x08" + bytes(57)],
        ]
        for _ in range(max(1, self.cases // 30)):
            for case in cases:
                await self._say(b"".join(case))

    async def _say(self, raw: bytes, port: int = 0, limit_s: float = 0.25) -> None:
        """Send, read a little of what comes, leave."""
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            reader, writer = await self._open(port)
            try:
                writer.write(raw)
                async with asyncio.timeout(limit_s):
                    await reader.read(65_536)
            finally:
                writer.transport.abort()

    def _mutated(self, raw: bytes) -> bytes:
        data, draw = bytearray(raw), self._random
        for _ in range(draw.randrange(1, 6)):
            at = draw.randrange(len(data) + 1)
            match draw.randrange(5):
                case 0:
                    data[at : at + draw.randrange(4)] = draw.randbytes(draw.randrange(4))
                case 1:
                    del data[at : at + draw.randrange(40)]
                case 2:
                    data[at:at] = data[: draw.randrange(len(data) + 1)][-60:]
                case 3:
                    data[at:at] = draw.choice(
                        [b"\r\n", b"\0", b"\xff" * 9, b"-1", b"1e999", b"[" * 200, b'"']
                    )
                case _:
                    data = data[:at] or data
        return bytes(data)

    async def _waves(self, cases: list[Awaitable[None]]) -> None:
        for start in range(0, len(cases), 50):
            await asyncio.gather(*cases[start : start + 50])

    async def _fuzz_http(self) -> None:
        binary = (
            b'{"inputs":[{"name":"features","shape":[1,20],"datatype":"FP32",'
            b'"parameters":{"binary_data_size":80}}]}'
        )
        cases: list[Awaitable[None]] = []
        for number in range(self.cases):
            length = self._random.choice([len(binary), 0, 1, -1, 10**6, 2**63, len(binary) + 80])
            kinds = [
                self._mutated(whole()),
                whole(self._mutated(BODY)),
                whole(binary + bytes(80), f"inference-header-content-length: {length}"),
                whole(self._mutated(binary) + bytes(80), f"inference-header-content-length: {len(binary)}"),
            ]
            cases.append(self._say(kinds[number % len(kinds)]))
        await self._waves(cases)

    async def _fuzz_grpc(self) -> None:
        import grpc

        from pellucid.servers.grpc.messages import SERVICE, message_class

        given = {"name": "features", "datatype": "FP32", "shape": [1, 20]}
        good = message_class("ModelInferRequest")(
            model_name="credit", inputs=[given], raw_input_contents=[bytes(80)]
        ).SerializeToString()
        address = f"127.0.0.1:{self.grpc_port}"
        async with grpc.aio.insecure_channel(address) as channel:
            infer: Any = channel.unary_unary(f"/{SERVICE}/ModelInfer")

            async def ask(raw: bytes) -> None:
                with contextlib.suppress(grpc.RpcError):
                    await infer(raw, timeout=30)

            await self._waves([ask(self._mutated(good)) for _ in range(self.cases)])
            await ask(good + bytes(2**20))
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
        await self._waves(
            [self._say(self._mutated(preface), self.grpc_port, 0.05) for _ in range(self.cases // 4)]
        )
