"""How a command's processes begin and end: what takes time there and is not the work that was asked for."""

from __future__ import annotations

import subprocess
import sys


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_a_command_ends_without_a_search_for_cycles_and_with_all_that_is_to_happen_at_its_end():
    said = _run(
        "import atexit, gc, sys, weakref\n"
        "from pellucid.cli.main import main\n"
        "class Kept: pass\n"
        "kept = Kept()\n"
        "atexit.register(lambda: print('FROZEN', gc.get_freeze_count() > 0))\n"
        "weakref.finalize(kept, print, 'FINALISED')\n"
        "sys.argv = ['pellucid', '--version']\n"
        "main()\n"
    )
    assert "FROZEN True" in said
    assert "FINALISED" in said
