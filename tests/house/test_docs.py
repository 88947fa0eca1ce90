"""The reference pages say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_generated_pages_are_current(tmp_path: Path):
    # in a process of its own: click remembers how a command was first asked for its help
    subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), str(tmp_path)], check=True, timeout=120
    )
    old = [
        page.name
        for page in tmp_path.iterdir()
        if page.read_text() != (ROOT / "docs" / "reference" / page.name).read_text()
    ]
    assert not old, "run: make docs"


def test_links_between_documents_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "spec").rglob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken
