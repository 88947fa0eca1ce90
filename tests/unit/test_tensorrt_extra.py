"""NVIDIA's library is an extra: without it the product says how to get it, and nothing else needs it."""

from __future__ import annotations

import subprocess
import sys

_WITHOUT = """
import sys
sys.modules["tensorrt_rtx"] = None
from pellucid.app.processes import backend_for
from pellucid.app.load import node_here
from pellucid.errors import MissingExtraError
try:
    backend_for("tensorrt-rtx")
except MissingExtraError as error:
    print(error.message, "HINT", error.hint)
print(node_here("tensorrt-rtx").environment)
"""
_UNTOUCHED = """
import sys
from pellucid.app.processes import backend_for
backend_for("onnxruntime").environment()
print([name for name in sys.modules if "tensorrt_rtx" in name])
"""


def run(source: str) -> str:
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_machine_without_the_library_says_how_to_get_it() -> None:
    said = run(_WITHOUT)
    assert "backend 'tensorrt-rtx' needs the library 'tensorrt_rtx', which is not installed" in said
    assert "HINT pip install 'pellucid[tensorrt]'" in said
    assert said.endswith("None\n")  # a policy's rules about the node are then not judged


def test_other_backends_never_load_it() -> None:
    assert run(_UNTOUCHED) == "[]\n"
