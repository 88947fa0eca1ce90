"""pellucid beside the servers that people use: `make bench-peers`, or `compare.py --quick` to see it work.

Same machine, same processors, same models, same bodies, same client, same check of every answer. In each
round every server is started afresh, checked, warmed up, loaded and stopped, one at a time; every second
round runs backwards. Errors or wrong answers void a load, and the report says so. Reported are medians,
ranges and ratios within a round, never a best. Writes peers.json, RESULTS.md and plots/.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before anything can import onnxruntime
sys.path.insert(0, str(Path(__file__).resolve().parent))

import alone
import facts
import loads
import report
from bodies import Ask, NotOfferedError
from contenders import CONTENDERS, Contender, Stable
from peers import peer
from peers.models import OWN
from peers.process import Server

HERE: Final = Path(__file__).resolve().parent
# model, form, connections, seconds
Load = tuple[str, str, tuple[int, ...], float]
FULL: Final[tuple[Load, ...]] = (
    ("mlp30", "json", (1, 8, 16, 64), 1), ("mlp30", "binary", (1, 8, 64), 1),
    ("mlp30", "grpc", (1, 8, 64), 1), ("mlp30", "shm", (8,), 1),
    ("cnn32", "json", (1, 8, 64), 1), ("cnn32", "binary", (8,), 1), ("cnn32", "grpc", (8,), 1),
    ("cnn96", "binary", (8,), 1),
    ("img224", "json", (1,), 2), ("img224", "binary", (1, 8, 64), 1), ("img224", "grpc", (8,), 1),
    ("img224", "shm", (8,), 1),
)  # fmt: skip
SOME: Final[tuple[Load, ...]] = (
    ("mlp30", "json", (1, 8, 64), 1), ("mlp30", "binary", (8,), 1), ("mlp30", "grpc", (8,), 1),
    ("cnn32", "json", (8,), 1), ("cnn96", "binary", (8,), 1), ("img224", "binary", (8,), 1),
)  # fmt: skip
QUICK: Final[tuple[Load, ...]] = (
    ("mlp30", "json", (1, 8), 1), ("mlp30", "binary", (8,), 1), ("mlp30", "grpc", (8,), 1),
    ("mlp30", "shm", (8,), 1), ("img224", "binary", (8,), 1),
)  # fmt: skip
# model, form; at a share of the highest rate of this server in this round
OPEN: Final = (("mlp30", "json"), ("img224", "binary"))
WARM: Final = (("img224", "binary"), ("cnn32", "json"), ("mlp30", "json"))
BASE: Final = ("pellucid-off", "pellucid", "triton", "mlserver", "kserve", "mosec")
DEFAULT: Final = (*BASE, "pellucid-durable", "pellucid-again", "pellucid-x2", "triton-x2")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it works, no more")
    parser.add_argument("--install", action="store_true", help="install missing peers and load tools first")
    parser.add_argument("--servers", default="", help=f"of {', '.join(CONTENDERS)} (default: all installed)")
    parser.add_argument("--models", default="mlp30,cnn32,cnn96,img224", help="peers serve all of them anyway")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice", type=float, default=1.0, help="factor on the length of every load")
    parser.add_argument("--open-seconds", type=float, default=2.0)
    parser.add_argument("--open-share", type=float, default=0.5, help="of a server's own highest rate")
    parser.add_argument("--open-rate", type=float, default=500.0, help="one rate for all, mlp30 in JSON")
    parser.add_argument("--server-cpus", help="for taskset, for example 0 (default: all, with the client)")
    parser.add_argument("--client-cpus", help="for taskset, for example 1")
    parser.add_argument("--scratch", type=Path, help="where sites live: on the disk that is to be measured")
    parser.add_argument("--out", type=Path, default=HERE)
    return parser.parse_args()


def main() -> None:
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit("stopped")
    )  # what was started is stopped on the way out
    chosen = arguments()
    if chosen.quick:
        chosen.rounds, chosen.open_seconds = 1, min(1.0, chosen.open_seconds)
    if chosen.install:
        for name in peer.NAMES:
            peer.install(name)
        peer.install_tools()
    field, wanted = select(chosen.servers), chosen.models.split(",")
    chosen.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=chosen.scratch, prefix="pellucid-bench-") as scratch:
        result = about(chosen, field, Path(scratch))
        stable = Stable(Path(scratch), Path(scratch) / "models", chosen.server_cpus, wanted)
        asks = {key: a for key, a in loads.prepare(stable.models).items() if key[0] in wanted}
        result["commands"] = commands(stable, field)  # who cannot be set up ends the run here
        for number in range(chosen.rounds):
            result["alone"] += [
                {"round": number + 1} | each
                for each in alone.alone(stable.made(), stable.models, wanted, 0.5 * chosen.slice)
            ]
            for contender in field if number % 2 == 0 else reversed(field):
                result["rounds"].append({"round": number + 1} | measure(stable, contender, asks, chosen))
                tell(result["rounds"][-1])
            result["took_s"] = round(time.monotonic() - began, 1)
            (chosen.out / "peers.json").write_text(json.dumps(result, indent=1) + "\n")
    print(report.write(chosen.out))


def select(names: str) -> list[Contender]:
    """Who takes part: those asked for, else the default of what is installed."""
    asked = [name for name in names.split(",") if name]
    if unknown := sorted(set(asked) - set(CONTENDERS)):
        sys.exit(f"--servers: expected some of {', '.join(CONTENDERS)}, got {', '.join(unknown)}")
    field: list[Contender] = []
    missing: list[Contender] = []
    for contender in (CONTENDERS[name] for name in asked or DEFAULT):
        (field if contender.is_here else missing).append(contender)
    if missing:
        told = f"not installed: {', '.join(c.name for c in missing)}; ARGS=--install brings peers"
        if asked:
            sys.exit(told)
        print(told, file=sys.stderr)
    return field


def about(chosen: argparse.Namespace, field: list[Contender], scratch: Path) -> dict[str, Any]:
    """What was measured, on what, with what."""
    names = {c.peer for c in field if c.mode is None}
    return {
        "machine": facts.machine(scratch),
        "settings": {
            "rounds": chosen.rounds, "slice": chosen.slice, "quick": chosen.quick,
            "open_seconds": chosen.open_seconds, "open_share": chosen.open_share,
            "open_rate": chosen.open_rate, "open_connections": loads.OPEN_CONNECTIONS,
            "server_cpus": chosen.server_cpus, "client_cpus": chosen.client_cpus,
        },
        "servers": {c.name: c.title for c in field},
        "forms": {c.name: list(c.forms) for c in field},
        "versions": {name: peer.asked_for(name) for name in sorted(names)},
        "clients": loads.COMMANDS,
        "tools": {name: version(name) for name in ("wrk", "h2load")},
        "alone": [],
        "rounds": [],
    }  # fmt: skip


def version(name: str) -> str:
    """First line of what a load tool says about itself."""
    program, environment = peer.tool(name)
    if program is None:
        return "missing"
    flag = "-v" if name == "wrk" else "--version"
    done = subprocess.run([program, flag], env=environment, capture_output=True, text=True)
    return (done.stdout or done.stderr).splitlines()[0].partition(" Copyright")[0]


def measure(
    stable: Stable, contender: Contender, asks: loads.Asks, chosen: argparse.Namespace
) -> dict[str, Any]:
    """One server's part of a round."""
    got: dict[str, Any] = {"server": contender.name, "closed": [], "open": [], "void": [], "left_out": []}
    if contender.mode is None:
        asks = {key: ask for key, ask in asks.items() if key[0] not in OWN}
    spoken = {key: ask for key, ask in asks.items() if key[1] in contender.forms}
    began = time.monotonic()
    server = stable.server(contender)
    with running(server, got, asks):
        got["memory"] = server.memory()
        for key in WARM[-1:] if chosen.quick else WARM:
            if key in spoken:
                closed(server, spoken[key], stable.models, 8, 1, chosen, got, keep=False)
        plan = QUICK if chosen.quick else FULL if contender.is_full else SOME
        shares = () if chosen.quick else OPEN if contender.is_full else OPEN[:1]
        for wanted in dict.fromkeys(load[0] for load in plan):  # small ones first: large ones leave queues
            for model, form, counts, seconds in plan:
                if model == wanted and (model, form) in spoken:
                    climb(server, spoken[model, form], stable.models, counts, seconds, chosen, got)
            here = [share for share in shares if share[0] == wanted]
            opened(
                server, spoken, here, chosen, got, is_fixed=wanted == "mlp30" and ("mlp30", "json") in spoken
            )
        got["memory_after"] = server.memory()
    stable.forget(contender)
    got["took_s"] = round(time.monotonic() - began, 1)
    return got


@contextlib.contextmanager
def running(server: Server, got: dict[str, Any], asks: loads.Asks) -> Iterator[None]:
    """A server that is gone afterwards; one that fails voids its part of the round, not the run."""
    try:
        got["first_answer_s"] = round(server.start(lambda: loads.is_answering(server.port, asks)), 2)
        yield
    except (ChildProcessError, TimeoutError) as error:
        got["void"].append(f"server: {error}")
    finally:
        server.stop()


def climb(
    server: Server, ask: Ask, models: Path, counts: Sequence[int], seconds: float, chosen: argparse.Namespace,
    got: dict[str, Any],
) -> None:  # fmt: skip
    """Closed loops with more and more connections, as long as each could be answered once."""
    for connections in counts:
        done = [c for c in got["closed"] if (c["model"], c["form"]) == (ask.model, ask.form)]
        if done and done[-1]["per_s"] * seconds * chosen.slice < connections:
            got["left_out"].append(
                f"{ask.model} {ask.form} c={connections}: {done[-1]['per_s']:.0f}/s before"
            )
            continue
        closed(server, ask, models, connections, seconds, chosen, got)


def closed(
    server: Server, ask: Ask, models: Path, connections: int, seconds: float, chosen: argparse.Namespace,
    got: dict[str, Any], *, keep: bool = True,
) -> None:  # fmt: skip
    """One closed loop, kept in ``got`` or, when it went wrong, said there."""
    what = {"model": ask.model, "form": ask.form, "connections": connections}
    try:
        result = loads.closed(
            server,
            ask,
            models,
            connections=connections,
            seconds=seconds * chosen.slice,
            cpus=chosen.client_cpus,
        )
    except (NotOfferedError, ChildProcessError, ValueError, OSError) as error:
        got["void"].append(f"{ask.model} {ask.form} c={connections}: {error}")
        return
    if keep:
        got["closed"].append(what | result)


def opened(
    server: Server, spoken: loads.Asks, shares: Sequence[tuple[str, str]], chosen: argparse.Namespace,
    got: dict[str, Any], *, is_fixed: bool,
) -> None:  # fmt: skip
    """Open loops: at one rate for all if wanted, then at a share of this server's best in this round."""
    wanted = [("fixed", "mlp30", "json", chosen.open_rate)] if is_fixed else []
    for model, form in shares:
        rates = [c["per_s"] for c in got["closed"] if (c["model"], c["form"]) == (model, form)]
        if rates:
            wanted.append(("share", model, form, chosen.open_share * max(rates)))
    for kind, model, form, rate in wanted:
        try:
            result = loads.open_loop(
                server, spoken[model, form], rate=rate, seconds=chosen.open_seconds * chosen.slice,
                cpus=chosen.client_cpus,
            )  # fmt: skip
        except (ChildProcessError, OSError) as error:
            got["void"].append(f"{model} {form} open {kind}: {error}")
            continue
        got["open"].append({"kind": kind, "model": model, "form": form} | result)


def commands(stable: Stable, field: list[Contender]) -> dict[str, str]:
    """Command lines, without the paths of this machine."""
    told = {}
    names = {sys.executable: "python", str(stable.scratch): "SCRATCH", str(peer.folder()): "PEERS"}
    names[str(HERE)] = "bench"
    for contender in field:
        server = stable.server(contender)
        pinned = ["taskset", "-c", server.cpus] if server.cpus else []
        line = " ".join([*pinned, *server.command])
        for path, word in names.items():
            line = line.replace(path, word)
        told[contender.name] = line
    return told


def tell(got: dict[str, Any]) -> None:
    best = max((c["per_s"] for c in got["closed"]), default=0.0)
    print(
        f"round {got['round']} {got['server']}: up to {best:,.0f}/s, took {got['took_s']:.0f} s",
        file=sys.stderr,
    )
    for line in got["void"]:
        print(f"  VOID {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
