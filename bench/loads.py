"""One load each on a running server: wrk and h2load in a closed loop, our own client in an open one."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import bodies
from bodies import Ask
from peers import models as peer_models
from peers.peer import tool
from peers.process import Server

HERE: Final = Path(__file__).parent
Asks = dict[tuple[str, str], Ask]
OPEN_CONNECTIONS: Final = 64
COMMANDS: Final = {
    "closed loop over HTTP": "wrk -t1 -cN -dSs --latency -s bench/post.lua URL -- BODY [LENGTH OF JSON HEAD]",
    "closed loop over gRPC": "h2load -t1 -cN -m1 -DS -d BODY -H 'content-type: application/grpc' "
    "-H 'te: trailers' --log-file=LOG URL",
    "open loop": f"python bench/client.py PORT PATH BODY {OPEN_CONNECTIONS} S --rate R --warm 0.3",
}


def prepare(models: Path) -> Asks:
    """Models, samples, expected answers and all bodies in a folder."""
    peer_models.write(models)
    return bodies.write_asks(models)


def is_answering(port: int, asks: Asks) -> bool:
    """Do all models answer in JSON?"""
    return all(
        bodies.post(port, ask.path, ask.body.read_bytes(), ask.headers)[0] == 200
        for (_, form), ask in asks.items()
        if form == "json"
    )


def closed(
    server: Server, ask: Ask, models: Path, *, connections: int, seconds: float, cpus: str | None = None
) -> dict[str, float]:
    """A closed loop after one checked answer; any error voids it.

    Raises:
        NotOfferedError: The server does not speak the form.
        ChildProcessError: Errors under load.
    """
    with contextlib.ExitStack() as stack:
        if ask.form == "shm":
            stack.enter_context(bodies.regions(server.port, ask.model, models))
        bodies.check(server.port, ask, models)
        spent, began = server.cpu_s(), time.monotonic()
        if ask.form == "grpc":
            result = _h2load(server.port + 1, ask, connections, seconds, cpus)
        else:
            result = _wrk(server.port, ask, connections, seconds, cpus)
        used, took = server.cpu_s() - spent, time.monotonic() - began
    result["cpu_us"] = used * 1e6 / max(1.0, result.pop("answered"))
    result["cores"] = used / took
    return {name: round(value, 2) for name, value in result.items()}


def open_loop(
    server: Server, ask: Ask, *, rate: float, seconds: float, cpus: str | None = None
) -> dict[str, float]:
    """Poisson arrivals at a rate, latency from when a request was due."""
    result = _client(server.port, ask, OPEN_CONNECTIONS, seconds, cpus, rate=rate, warm=0.3)
    failed = result.pop("errors")
    if failed:
        raise ChildProcessError(f"{server.name}: {failed:.0f} errors in the open loop: the round is void")
    return {name: round(value, 2) for name, value in (result | {"rate": rate}).items()}


def _pinned(command: list[str], cpus: str | None) -> list[str]:
    return ["taskset", "-c", cpus, *command] if cpus else command


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ChildProcessError(f"{command[0]}: ended with {done.returncode}: {done.stderr[-400:]}")
    return done.stdout


def _wrk(port: int, ask: Ask, connections: int, seconds: float, cpus: str | None) -> dict[str, float]:
    program, environment = tool("wrk")
    if program is None:
        told: dict[str, Any] = _client(port, ask, connections, seconds, cpus)
        failed, answered = told["errors"], told["requests"]
        result = {name: told[name] for name in ("p50_us", "p90_us", "p99_us")}
        rate = answered / told["seconds"]
    else:
        command = [program, "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency"]
        command += ["-s", str(HERE / "post.lua"), f"http://127.0.0.1:{port}{ask.path}", "--", str(ask.body)]
        command += [str(ask.head)] if ask.head else []
        out = _run(_pinned(command, cpus), environment).rpartition("RESULT")[2]
        told = {k: float(v) for k, v in re.findall(r"(\w+)=([0-9.]+)", out)}
        failed, answered, rate = told["non2xx"] + told["socket_errors"], told["requests"], told["rps"]
        result = {f"{q}_us": told[f"{q}_ms"] * 1e3 for q in ("p50", "p90", "p99")}
    if failed or not answered:
        raise ChildProcessError(f"{failed:.0f} errors, {answered:.0f} answers under load: the round is void")
    return {"per_s": rate, "answered": answered} | result


def _client(
    port: int, ask: Ask, connections: int, seconds: float, cpus: str | None, **options: float
) -> dict[str, float]:
    command = [sys.executable, str(HERE / "client.py"), str(port), ask.path, str(ask.body)]
    command += [str(connections), str(seconds)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    command += ["--head", str(ask.head)] if ask.head else []
    result: dict[str, float] = json.loads(_run(_pinned(command, cpus)))
    return result


def _h2load(port: int, ask: Ask, connections: int, seconds: float, cpus: str | None) -> dict[str, float]:
    """gRPC: one call in flight on each connection, as wrk does.

    h2load counts an error of gRPC as success; an error carries no message, so the answers together must
    have the length of as many checked ones (keys of calls in them grow by a digit now and then).
    """
    program, environment = tool("h2load")
    if program is None:
        raise bodies.NotOfferedError("h2load is missing here")
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        command = [
            program,
            "-t1",
            f"-c{connections}",
            "-m1",
            f"-D{max(1, round(seconds))}",
            "-d",
            str(ask.body),
        ]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"--log-file={log}"]
        out = _run(_pinned([*command, f"http://127.0.0.1:{port}{ask.path}"], cpus), environment)
        times = sorted(int(line.split("\t")[2]) for line in log.read_text().splitlines())
    told = re.search(r"finished in ([0-9.]+)(m?s), ([0-9.]+) req/s", out)
    counts = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", out)
    sizes = re.search(r"\((\d+)\) data", out)
    if not (told and counts and sizes and times):
        raise ChildProcessError(f"h2load: expected its summary, got {out[-400:]}")
    answered, *failures = map(int, counts.groups())
    each = len(bodies.framed_answer(port, ask))
    if any(failures) or not answered or abs(int(sizes[1]) / each - answered) > 0.02 * answered + connections:
        raise ChildProcessError(f"gRPC: {counts[0]}, {sizes[1]} bytes of {each} each: the round is void")
    pick = {f"{q}_us": times[int(len(times) * at)] for q, at in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
    return {"per_s": float(told[3]), "answered": answered} | pick
