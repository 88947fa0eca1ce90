"""One measurement each: a server under load, ONNX Runtime alone, the sequencer, verification."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from facts import wrk

from pellucid.app.clock import SystemClock
from pellucid.app.ledger import open_ledger, open_sequencer, start_recorder
from pellucid.app.site import Site
from pellucid.core.archive import write_archive
from pellucid.core.entry import encode_outputs
from pellucid.core.record import Batch, Call, Row
from pellucid.core.tensor import Tensor
from pellucid.core.trust import verify_package
from pellucid.errors import NotFoundError
from pellucid.guardian.open import open_package
from pellucid.testing.packages import Workshop
from pellucid.testing.server import ServerProcess

HERE = Path(__file__).parent
PATH = "/v2/models/mlp30/infer"


class Served:
    """A server that stays up, loaded a slice at a time; idle slices of others do not disturb it."""

    def __init__(self, site: Site) -> None:
        self.site, self.process = site, ServerProcess(site.root).start()
        self.recorded = site.config.ledger.record != "unsafe_record_nothing"

    def slice(self, body: Path, connections: int, seconds: float) -> dict[str, float]:
        """One slice of load; returns when the ledger has taken in what it left behind."""
        before = _cpu_us(self.process.ready["pid"])
        result = load(self.process.port, body, connections, seconds)
        spent = _cpu_us(self.process.ready["pid"]) - before
        if self.recorded:
            self._settle(body)
        return result | {"cpu_us": spent / result.pop("answered")}

    def _settle(self, body: Path) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.process.port, timeout=60)
        connection.request("POST", PATH, body.read_bytes())
        key = connection.getresponse().headers["pellucid-call"]
        connection.close()
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with contextlib.closing(open_ledger(self.site)) as ledger, contextlib.suppress(NotFoundError):
                ledger.reader.locate(key)
                return
            time.sleep(0.02)
        raise TimeoutError(f"{key} was not integrated within 120 s")

    def stop(self) -> None:
        if self.process.stop() != 0:
            raise ChildProcessError("the server did not end cleanly: the run is void")


def _cpu_us(pid: int) -> float:
    """Processor time of a server's threads so far; its sequencer is a process of its own."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3


def load(port: int, body: Path, connections: int, seconds: float) -> dict[str, float]:
    """One load in a process of its own; errors or answers other than 200 void it."""
    tool = wrk()
    if tool is None:
        command = [sys.executable, str(HERE / "client.py"), str(port), PATH, str(body)]
        done = subprocess.run(
            [*command, str(connections), str(seconds)],
            capture_output=True,
            text=True,
            check=True,
        )
        result = json.loads(done.stdout)
        failed, rate, answered = result["errors"], result["requests"] / result["seconds"], result["requests"]
        p50, p99 = result["p50_us"], result["p99_us"]
    else:
        url = f"http://127.0.0.1:{port}{PATH}"
        command = [tool, "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency"]
        done = subprocess.run(
            [*command, "-s", str(HERE / "post.lua"), url, "--", str(body)],
            capture_output=True,
            text=True,
            check=True,
        )
        told = {k: float(v) for k, v in re.findall(r"(\w+)=([0-9.]+)", done.stdout.rpartition("RESULT")[2])}
        failed, rate, answered = told["non2xx"] + told["socket_errors"], told["rps"], told["requests"]
        p50, p99 = told["p50_ms"] * 1e3, told["p99_ms"] * 1e3
    if failed:
        raise ChildProcessError(f"{failed:.0f} errors under load: the round is void")
    return {"per_s": rate, "p50_us": p50, "p99_us": p99, "answered": answered}


def bare(model: bytes, level: Any, feed: dict[str, Any], seconds: float) -> dict[str, float]:
    """ONNX Runtime in this process, one thread, one row a run, nothing around it."""
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    times = []
    for _ in range(200):
        session.run(None, feed)
    until = time.perf_counter_ns() + int(seconds * 1e9)
    began = now = time.perf_counter_ns()
    while now < until:
        session.run(None, feed)
        after = time.perf_counter_ns()
        times.append(after - now)
        now = after
    times.sort()
    pick = {name: times[int(len(times) * q)] / 1e3 for name, q in (("p50_us", 0.5), ("p99_us", 0.99))}
    return {"per_s": len(times) / ((now - began) / 1e9)} | pick


def sequencer(site: Site, calls: int, batch: int = 8) -> float:
    """Entries per second: a journal of ``calls`` calls in batches of eight becomes a signed tree."""
    recorder = start_recorder(site)
    outputs = Tensor("probs", "FP32", (1, 2), np.array([0.25, 0.75], "<f4").tobytes())
    row = Row(b"i" * 32, b"o" * 32, "yes", "0.750000", encode_outputs([outputs]))
    facts = dict.fromkeys(("package", "engine", "policy", "environment"), "sha256:" + "a" * 64)
    context = recorder.add_context({"model": "mlp30", "version": "1.0.0"} | facts)
    for number in range(calls // batch):
        now = time.time_ns()
        closed = tuple(_call(recorder.reserve(now), context, now, slot, row) for slot in range(batch))
        recorder.close_batch(Batch(number + 1, context, batch, now, 1, closed))
    recorder.close()
    with open_sequencer(site, sinks=False) as running:
        began = time.perf_counter()
        entries = running.drain()
        took = time.perf_counter() - began
    return entries / took


def _call(n: int, context: int, now: int, slot: int, row: Row) -> Call:
    stages, shapes, personal = (1, 2, 3, 4), ((1, 30),), {"address": "127.0.0.1"}
    return Call(
        n, context, "answered", None, now, now, stages, slot, 8, (row,), shapes, (120, 8), os.urandom(32),
        personal, "ab" * 16,
    )  # fmt: skip


def verification(folder: Path, megabytes: int) -> dict[str, float]:
    """MB/s of verifying a package whose weights do not compress, beside SHA-256 over the same bytes."""
    shop = Workshop()
    files = shop.package(extra={"model/weights.bin": os.urandom(megabytes * 10**6)})
    size = sum(map(len, files.files.values())) / 1e6
    archive = folder / f"{files.name}.tar.gz"
    archive.write_bytes(write_archive(files.name, files.files))
    clock = SystemClock()

    def rate(function: Any) -> float:
        best = 0.0
        for _ in range(3):
            began = clock.monotonic_ns()
            function()
            best = max(best, size / ((clock.monotonic_ns() - began) / 1e9))
        return best

    blobs = list(files.files.values())
    result = {
        "hashlib_mb_s": rate(lambda: [hashlib.sha256(data).digest() for data in blobs]),
        "verify_mb_s": rate(lambda: verify_package(files, shop.trust)),
        "open_and_verify_mb_s": rate(lambda: verify_package(open_package(archive), shop.trust)),
    }
    archive.unlink()
    return result


def copy_site(made: Path, target: Path) -> Path:
    shutil.copytree(made, target)
    return target
