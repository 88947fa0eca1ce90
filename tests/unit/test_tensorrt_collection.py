"""Builds one after the other in one process: what a failed one left is not destroyed inside the next."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from pellucid.backends.tensorrt.collection import no_collection

pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt-rtx: the extra is not installed")

TWICE = """
import gc
from pellucid.backends.tensorrt.rtx import TensorRtRtxBackend
from pellucid.errors import PellucidError
from pellucid.testing.models import digits_like

recipe = {"target": "sm89", "tf32": False, "workspace_bytes": 2**32, "buckets": [1, 8], "pinned_bucket": None}
gc.disable()
try:
    TensorRtRtxBackend().build(recipe | {"workspace_bytes": 2**20}, digits_like(), lambda line: None)
except PellucidError as error:
    error.itself = error  # with its traceback, and so with the builder
else:
    raise SystemExit("expected a refusal")
gc.enable()
gc.set_threshold(0)  # nothing is collected until the library speaks
calls = []

def log(line):
    calls.append(line)
    if gc.isenabled():
        gc.collect()  # as the collector does whenever it likes

built = TensorRtRtxBackend().build(recipe, digits_like(), log)
assert gc.isenabled() and calls and built.engine
"""


def test_a_failed_build_does_not_hang_the_next_in_its_process() -> None:
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_collector_is_left_as_it_was() -> None:
    with no_collection():
        assert not gc.isenabled()
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
