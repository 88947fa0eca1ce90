"""A refused loan: the whole chain on real data, and then everything a thief could try.

    make demo      or      python examples/demo.py --folder .demo

Calls the same verbs that a person would type and checks every promise on the way; the first one
that does not hold ends the walk with exit 1. Leaves packages/, ledger/, trust/, bundle.zip and
report.html in the folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path

# ONNX Runtime's usage reporting is off before anything could import it, here and in every child.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "credit")]

from rich.console import Console  # noqa: E402
from walk import auditor, case, days, heist, making, page  # noqa: E402
from walk.server import Server  # noqa: E402
from walk.stage import WIDTH, BrokenError, Stage  # noqa: E402
from walk.state import MARK, Walk  # noqa: E402


def ending(walk: Walk) -> None:
    stage = walk.stage
    stage.station("What was proven")
    stage.table(("what", "how", f"where in {stage.folder.name}/"), stage.proven)
    page.write(walk.site / "report.html", walk.facts, stage.proven)
    for left in ("packages", "ledger", "trust", "bundle.zip", "report.html"):
        stage.need((walk.site / left).exists(), f"leftovers: expected {left}, got none")
    seconds = time.monotonic() - stage.began
    stage.say(f"{seconds:.0f} seconds. Open {stage.folder.name}/report.html, or look into bundle.zip.")
    stage.say(
        "Integrity was shown, not truth: that this is what was recorded, by whom, and unchanged.", "dim"
    )


STATIONS = (
    making.make_site, making.train, making.build, making.qualify,
    days.first_day, days.second_day,
    case.complaint, case.regulator, case.entry_and_proof, case.replay,
    auditor.evidence, case.erase, heist.steal, ending,
)  # fmt: skip


def prepare(folder: Path) -> Path:
    """An empty folder: a new one, or an earlier demo's."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).is_file():
            raise BrokenError(f"{folder}: expected a new folder or an earlier demo, got something else")
        shutil.rmtree(folder)
    return folder.resolve()


def main() -> int:
    parser = argparse.ArgumentParser(description="Walk the whole chain, then try to cheat it.")
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="site to make (default .demo)")
    folder = parser.parse_args().folder
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    walk: Walk | None = None
    try:
        site = prepare(folder)
        stage = Stage(site, console)
        walk = Walk(stage, Server(stage), site)
        for station in STATIONS:
            station(walk)
    except BrokenError as error:
        console.print()
        console.print(f"The demo stops here: {error}", style="bold red", markup=False)
        return 1
    except (LookupError, TypeError, ValueError, OSError, subprocess.TimeoutExpired) as error:
        traceback.print_exc()
        console.print(f"The demo stops here: {error!r}", style="bold red", markup=False)
        return 1
    finally:
        if walk is not None:
            walk.server.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
