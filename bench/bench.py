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
import report
from render_ledger import MODES, NAMES

from pellucid.app.site import Site, open_site
from pellucid.testing.site import configure, make_site

HERE = Path(__file__).parent


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
    print(report.write(chosen.out))


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
        "client": "wrk" if facts.wrk() else "bench/client.py",
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
                    result = measure.bare(*engines[name], {"input": model.samples(1)}, chosen.seconds / 2)
                rounds[name].append(result)
            told = ", ".join(f"{name} {results[-1]['per_s']:,.0f}" for name, results in rounds.items())
            print(f"round {number + 1}: {told}", file=sys.stderr)
    return rounds


def engine(made: Site) -> bytes:
    from pellucid.app.load import verify

    (archive,) = made.packages_folder.glob("*.tar.gz")
    return verify(made, archive).package.engine


if __name__ == "__main__":
    main()
