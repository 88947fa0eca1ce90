"""What the ledger costs, in one run: `make bench`, or `bench.py --quick` to see that it works.

Three servers stay up: recording off, `journaled`, `durable`. Per round each is loaded for a short
slice, and ONNX Runtime runs alone at the level that is served and at its default level; the order is
reversed every second round, and the next slice waits until the ledger has taken in the last one.
Short slices, because a shared machine changes its speed within seconds: what is compared was measured
next to each other. Then the sequencer and package verification. Results are ratios with the facts of
the machine; absolute numbers are asserted nowhere. Writes results.json and RESULTS.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before anything can import onnxruntime
sys.path.insert(0, str(Path(__file__).parent))

import facts
import measure
import model
import onnxruntime as ort

from pellucid.app.site import Site, open_site
from pellucid.testing.site import configure, make_site

HERE = Path(__file__).parent
MODES = {"off": "unsafe_record_nothing", "journaled": "journaled", "durable": "durable"}
NAMES = {
    "off": "recording off",
    "journaled": "journaled (default)",
    "durable": "durable",
    "bare_same": "bare ONNX Runtime, level as served",
    "bare_default": "bare ONNX Runtime, its default level",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it works, no more")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a slice")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--out", type=Path, default=HERE)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.seconds = 1, 0.5
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        result = run(chosen, Path(scratch))
    result["took_s"] = round(time.monotonic() - began, 1)
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    text = render(result)
    (chosen.out / "RESULTS.md").write_text(text)
    print(text)


def run(chosen: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    machine = facts.machine(scratch)
    made = make_site(
        scratch / "made", model=model.model, name="mlp30", meaning=model.MEANING,
        samples={"input": model.samples(200)}, recipe={"buckets": [1, 2, 4, 8, 16, 32]},
    )  # fmt: skip
    body = scratch / "body.json"
    body.write_bytes(model.request())
    rounds = measure_rounds(made, scratch, body, chosen)
    calls, megabytes = (2_000, 8) if chosen.quick else (40_000, 128)
    ledger = open_site(measure.copy_site(made.root, scratch / "ledger"))
    return {
        "machine": machine,
        "client": "wrk" if facts.wrk() else "bench/client.py (asyncio, uvloop, one process)",
        "settings": {
            "model": "mlp30", "request_bytes": body.stat().st_size, "connections": chosen.connections,
            "seconds": chosen.seconds, "rounds": chosen.rounds, "quick": chosen.quick,
        },
        "rounds": rounds,
        "sequencer_entries_per_s": measure.sequencer(ledger, calls),
        "verification": measure.verification(scratch, megabytes),
    }  # fmt: skip


def measure_rounds(
    made: Site, scratch: Path, body: Path, chosen: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
    with contextlib.ExitStack() as stack:
        served = {}
        for name, mode in MODES.items():
            site = open_site(measure.copy_site(made.root, scratch / name))
            served[name] = measure.Served(configure(site, ledger={"record": mode}))
            stack.callback(served[name].stop)
            served[name].slice(body, chosen.connections, 1.0)  # warm-up, not counted
        engines = {
            "bare_same": (engine(made), ort.GraphOptimizationLevel.ORT_DISABLE_ALL),
            "bare_default": (model.model(), ort.GraphOptimizationLevel.ORT_ENABLE_ALL),
        }
        for number in range(chosen.rounds):
            for name in list(NAMES) if number % 2 == 0 else list(reversed(NAMES)):
                if name in served:
                    result = served[name].slice(body, chosen.connections, chosen.seconds)
                else:
                    result = measure.bare(*engines[name], chosen.seconds / 2)
                rounds[name].append(result)
            told = ", ".join(f"{name} {results[-1]['per_s']:,.0f}" for name, results in rounds.items())
            print(f"round {number + 1}: {told}", file=sys.stderr)
    return rounds


def engine(made: Site) -> bytes:
    from pellucid.app.load import verify

    (archive,) = made.packages_folder.glob("*.tar.gz")
    return verify(made, archive).package.engine


def summary(values: list[float]) -> tuple[float, float, float]:
    """Median, smallest, largest."""
    return statistics.median(values), min(values), max(values)


def render(result: dict[str, Any]) -> str:
    rounds, machine, settings = result["rounds"], result["machine"], result["settings"]
    off = statistics.median(r["per_s"] for r in rounds["off"])
    lines = [
        "# What the ledger costs",
        "",
        "Written by `make bench`. Read the ratios: absolute numbers belong to one machine and one hour.",
        "" if not settings["quick"] else "\n**`--quick`: one short round. These numbers mean nothing.**\n",
        "| | req/s, median | range | to recording off | p50 us | p99 us | server's CPU us a call |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, label in NAMES.items():
        median, low, high = summary([r["per_s"] for r in rounds[name]])
        p50, p99 = (statistics.median(r[q] for r in rounds[name]) for q in ("p50_us", "p99_us"))
        ratio = f"{median / off:.2f}" if name in MODES else ""
        cpu = f"{statistics.median(r['cpu_us'] for r in rounds[name]):.1f}" if name in MODES else ""
        lines.append(
            f"| {label} | {median:,.0f} | {low:,.0f} - {high:,.0f} | {ratio} | {p50:,.1f} | {p99:,.1f} "
            f"| {cpu} |"
        )
    lines += ["", f"Within a round, journaled to off: {paired(rounds, 'journaled')}.  "]
    lines += [f"Within a round, durable to off: {paired(rounds, 'durable')}."]
    check = result["verification"]
    lines += [
        "",
        f"- Ledger: {result['sequencer_entries_per_s']:,.0f} entries/s through the sequencer "
        "(journal to signed checkpoint, index and vault, one process).",
        f"- Package verification: {check['verify_mb_s']:,.0f} MB/s in memory, "
        f"{check['open_and_verify_mb_s']:,.0f} MB/s from the archive; hashlib's SHA-256 alone: "
        f"{check['hashlib_mb_s']:,.0f} MB/s.",
        "",
        f"{settings['rounds']} interleaved rounds with slices of {settings['seconds']:g} s, order reversed "
        "every second round, the ledger settled between slices, warm-up left out. "
        f"{settings['connections']} connections, closed loop, JSON in and out, one row of mlp30 (30 inputs, "
        f"{settings['request_bytes']} bytes) a request. "
        f"Client: {result['client']}; client, server and sequencer share the machine's processors. The "
        "server batches what arrives together; bare ONNX Runtime runs one row after the other in a loop.",
        "",
        f"Machine: {machine['processor']}, {machine['logical_processors']} logical processors, "
        f"{machine['memory_gib']} GiB, kernel {machine['kernel']}, {machine['file_system']}, one fdatasync "
        f"{machine['fdatasync_ms']} ms, load average before {machine['load_average']}. "
        f"Python {machine['python']}, "
        + ", ".join(f"{name} {version}" for name, version in machine["libraries"].items())
        + f". Commit {machine['commit']}. Took {result.get('took_s', 0):.0f} s.",
        "",
    ]
    return "\n".join(lines)


def paired(rounds: dict[str, list[dict[str, float]]], name: str) -> str:
    ratios = sorted(a["per_s"] / b["per_s"] for a, b in zip(rounds[name], rounds["off"], strict=True))
    middle = ratios[len(ratios) // 4 : len(ratios) - len(ratios) // 4]
    return f"median **{statistics.median(ratios):.2f}**, middle half {middle[0]:.2f} - {middle[-1]:.2f}"


if __name__ == "__main__":
    main()
