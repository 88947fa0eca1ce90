"""Hostile clients at a real server, at full size: ten thousand idle connections and all the rest.

``python bench/hostile.py`` writes ``bench/hostile.json`` (what was asked, the curve of resident memory,
what the good client got, the limits of the machine) and ``bench/hostile.svg``, and ends with an error if
anybody who should have been served was not, or a number was left open. ``PELLUCID_CROWD`` is how many
connections are idle; client and server need a hard limit of descriptors above it (``ulimit -Hn``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from pellucid.app.ledger import check_ledger, ledger_vkey, open_ledger, settle
from pellucid.app.site import Site
from pellucid.core.entry import parse_entry
from pellucid.ledger.complete import complete
from pellucid.testing.hostile import Attack, Outcome
from pellucid.testing.server import serving
from pellucid.testing.site import configure, make_site

WIDTH, HEIGHT, MARGIN = 900, 340, 60
STEP = 80 * 2**20  # of the axis


def drawn(outcome: Outcome) -> str:
    """The curve as SVG, with the phases named where they begin."""
    last = outcome.curve[-1][0] or 1.0
    most = max(resident for _, _, resident in outcome.curve)
    top = -(-most // STEP) * STEP

    def place(second: float, resident: float) -> str:
        x = MARGIN + (WIDTH - 2 * MARGIN) * second / last
        return f"{x:.1f},{HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * resident / top:.1f}"

    points = " ".join(place(second, resident) for second, _, resident in outcome.curve)
    names, seen, free = [], "before", 0.0
    for second, phase, _ in outcome.curve:
        if phase != seen:
            seen, x = phase, float(place(second, 0).partition(",")[0])
            free = max(x, free)  # names of short phases stand beside each other
            turned = f"translate({free:.1f},{MARGIN - 4}) rotate(-30)"
            names.append(
                f'<line x1="{x}" x2="{x}" y1="{MARGIN}" y2="{HEIGHT - MARGIN}" stroke="#ccc"/>'
                f'<text transform="{turned}" font-size="11">{phase}</text>'
            )
            free += 16
    marks = []
    for share in range(5):
        level = top * share / 4
        y = place(0, level).partition(",")[2]
        marks.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y}" y2="{y}" stroke="#eee"/>'
            f'<text x="{MARGIN - 6}" y="{y}" font-size="11" text-anchor="end">{level / 2**20:.0f}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif"><title>Resident memory of the server, {outcome.opened:,} idle connections '
        f"and other hostile clients</title>"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>{"".join(marks)}{"".join(names)}'
        f'<polyline fill="none" stroke="#2457a6" stroke-width="1.5" points="{points}"/>'
        f'<text x="{MARGIN}" y="{HEIGHT - 12}" font-size="12">MiB resident over 0 to {last:.0f} s; '
        f"{outcome.opened:,} idle connections at once; at most {most / 2**20:,.0f} MiB</text></svg>\n"
    )


def open_numbers(site: Site) -> dict[str, object]:
    """What the ledger says of it all."""
    settle(site)
    with closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    outcomes: dict[str, int] = {}
    for entry in entries:
        if entry.type == "call":
            outcomes[entry.data["outcome"]] = outcomes.get(entry.data["outcome"], 0) + 1
    found = [str(finding) for finding in complete(entries).findings]
    report = check_ledger(site.ledger_folder, ledger_vkey(site), site.config.ledger.origin)
    return {"outcomes": outcomes, "findings": found + [str(finding) for finding in report.findings]}


def main() -> int:
    """Attack, write, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path(__file__).parent)
    parser.add_argument("--idle", type=int, default=int(os.environ.get("PELLUCID_CROWD", "10000")))
    parser.add_argument("--hold", type=float, default=5.0)
    parser.add_argument("--cases", type=int, default=5_000)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))  # the server inherits it
    with tempfile.TemporaryDirectory() as folder:
        # by default a server takes 4,096 connections: here only descriptors are the limit
        site = configure(make_site(Path(folder) / "site"), doors={"connections_max": 0})
        with serving(site.root, log=Path(folder) / "hostile.log") as server:
            outcome = Attack(
                server.port, server.ready["beside"]["grpc"], server.pid, idle=given.idle, slow=4_500,
                readers=200, gone=2_000, cases=given.cases, hold_s=given.hold,
            ).run()  # fmt: skip
        told = open_numbers(site)
    sizes = [resident for _, _, resident in outcome.curve]
    seen = asdict(outcome)
    seen["curve"] = [[round(second, 1), phase, resident] for second, phase, resident in outcome.curve]
    record = {
        "asked": {"idle": given.idle, "hold_s": given.hold, "cases": given.cases},
        "machine": {
            "cpus": os.cpu_count(), "load": os.getloadavg(), "descriptors": descriptors,
            "python": platform.python_version(),
        },
        "first": sizes[0], "most": max(sizes), "last": sizes[-1], "ledger": told, **seen,
    }  # fmt: skip
    (given.out / "hostile.json").write_text(json.dumps(record) + "\n")
    (given.out / "hostile.svg").write_text(drawn(outcome))
    print(json.dumps({key: record[key] for key in record if key != "curve"}, indent=1))
    short = outcome.opened < given.idle
    return 1 if told["findings"] or outcome.troubles or short else 0


if __name__ == "__main__":
    sys.exit(main())
