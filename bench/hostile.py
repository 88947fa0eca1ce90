"""Hostile clients at a real server, at full size: ten thousand idle connections and all the rest.

``python bench/hostile.py OUT`` writes ``OUT/hostile.json`` (the curve of resident memory, what the good
client got, the limits of the machine) and ``OUT/hostile.svg``, and ends with an error if anybody who
should have been served was not, or a number was left open.
"""

from __future__ import annotations

import argparse
import json
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
from pellucid.testing.site import make_site

WIDTH, HEIGHT, MARGIN = 900, 320, 50


def drawn(outcome: Outcome) -> str:
    """The curve as SVG, with the phases named where they begin."""
    last = outcome.curve[-1][0] or 1.0
    top = max(resident for _, _, resident in outcome.curve) * 1.1

    def place(second: float, resident: float) -> str:
        x = MARGIN + (WIDTH - 2 * MARGIN) * second / last
        return f"{x:.1f},{HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * resident / top:.1f}"

    points = " ".join(place(second, resident) for second, _, resident in outcome.curve)
    names, seen = [], ""
    for second, phase, _ in outcome.curve:
        if phase != seen:
            x = place(second, 0).partition(",")[0]
            names.append(
                f'<line x1="{x}" x2="{x}" y1="{MARGIN}" y2="{HEIGHT - MARGIN}" stroke="#ccc"/>'
                f'<text transform="translate({x},{MARGIN - 4}) rotate(-20)" font-size="11">{phase}</text>'
            )
            seen = phase
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
        f"<title>Resident memory of the server</title>{''.join(names)}"
        f'<polyline fill="none" stroke="#2457a6" stroke-width="1.5" points="{points}"/>'
        f'<text x="{MARGIN}" y="{HEIGHT - 12}" font-size="12">0 to {last:.0f} s; at most '
        f"{top / 1.1 / 2**20:,.0f} MiB</text></svg>\n"
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
    parser.add_argument("out", type=Path)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--hold", type=float, default=5.0)
    parser.add_argument("--cases", type=int, default=5_000)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        site = make_site(Path(folder) / "site")
        with serving(site.root, log=given.out / "hostile.log") as server:
            outcome = Attack(
                server.port, server.ready["beside"]["grpc"], server.pid, idle=given.idle, slow=4_500,
                readers=200, gone=2_000, cases=given.cases, hold_s=given.hold,
            ).run()  # fmt: skip
        told = open_numbers(site)
    sizes = [resident for _, _, resident in outcome.curve]
    record = {
        "asked": vars(given) | {"out": ""}, "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "first": sizes[0], "most": max(sizes), "last": sizes[-1], "ledger": told, **asdict(outcome),
    }  # fmt: skip
    (given.out / "hostile.json").write_text(json.dumps(record, indent=1) + "\n")
    (given.out / "hostile.svg").write_text(drawn(outcome))
    print(json.dumps({key: record[key] for key in record if key != "curve"}, indent=1))
    return 1 if told["findings"] or outcome.troubles else 0


if __name__ == "__main__":
    sys.exit(main())
