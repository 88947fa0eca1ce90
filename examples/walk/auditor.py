"""The auditor: a trust folder from the first day, Python, and nothing of ours."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from walk.state import Walk, case_of


def evidence(walk: Walk) -> None:
    stage = walk.stage
    stage.station(
        "Evidence for a stranger",
        "The bundle goes to the auditor, who has trust/ since the first day, Python, and nothing of ours:\n"
        "verify.py is copied out alone.",
    )
    bundle = walk.site / "bundle.zip"
    exported = stage.ask("export", case_of(walk).call, "--out", str(bundle), "--reason", "complaint")
    stage.good(f"{exported['entries']} entries with their proofs, {bundle.stat().st_size:,} bytes")
    shutil.copy2(bundle, walk.auditor / "bundle.zip")
    shutil.copy2(verifier(), walk.auditor / "verify.py")
    done = verify_alone(walk, walk.auditor / "bundle.zip")
    stage.need(
        done.returncode == 0, f"verify.py: expected exit 0, got {done.returncode}: {done.stdout}{done.stderr}"
    )
    stage.lines(done.stdout)
    with zipfile.ZipFile(bundle) as members:
        (walk.auditor / "trust" / "seen.checkpoint").write_bytes(members.read("log/checkpoint"))
    stage.good("the auditor keeps the bundle's checkpoint as seen.checkpoint")
    stage.prove("all of it, by a stranger with only Python", "python -I verify.py", "bundle.zip")


def verifier() -> Path:
    import pellucid.evidence

    return Path(pellucid.evidence.__path__[0]) / "verify.py"


def verify_alone(walk: Walk, bundle: Path, trust: str = "trust") -> subprocess.CompletedProcess[str]:
    """``verify.py`` alone: the interpreter that made our environment, isolated, in another folder."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    walk.stage.show("python", "-I", "verify.py", bundle.name, "--trust", trust)
    return walk.stage.script(
        base, "-I", "-S", "verify.py", str(bundle), "--trust", trust, cwd=walk.auditor
    )  # -S: not even what that interpreter has installed
