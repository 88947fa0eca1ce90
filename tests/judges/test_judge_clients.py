"""Programs that were written for other servers judge ours: clients, a load generator, a fuzzer."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pellucid.testing.server import ServerProcess

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
pytestmark = pytest.mark.judge
Python = Callable[[str], str]


def address(served: ServerProcess, kind: str) -> str:
    port = served.port if kind == "http" else served.ready["beside"]["grpc"]
    return f"127.0.0.1:{port}"


def steps_of(python: str, script: str, served: ServerProcess, kind: str) -> dict[str, Any]:
    done = subprocess.run(
        [python, str(HERE / script), kind, address(served, kind)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize(("kind", "count"), [("http", 18), ("grpc", 19)])
def test_tritonclient(served: ServerProcess, judge_python: Python, kind: str, count: int):
    steps = steps_of(judge_python("tritonclient"), "triton_judge.py", served, kind)
    assert {name: said for name, said in steps.items() if said != "ok"} == {}
    assert len(steps) == count


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_the_kserve_client(served: ServerProcess, judge_python: Python, kind: str):
    steps = steps_of(judge_python("kserve"), "kserve_judge.py", served, kind)
    assert {name: said for name, said in steps.items() if said != "ok"} == {}
    assert len(steps) == 7


# -- schemathesis ---------------------------------------------------------------------------------

# Whether a request fits a model is not in the document, so valid ones may be refused; and JSON Schema
# takes 1.0 for an integer, which we do not. Forgetting what was never registered is no error.
FUZZED = {
    "everything": ["--exclude-path-regex", "/unregister$", "--exclude-checks", "positive_data_acceptance"],
    "unregister": [
        "--include-path-regex", "/unregister$", "--exclude-checks",
        "positive_data_acceptance,negative_data_rejection",
    ],
}  # fmt: skip


@pytest.mark.parametrize("what", FUZZED)
def test_schemathesis(served: ServerProcess, judge_python: Python, tmp_path: Path, what: str):
    program = Path(judge_python("schemathesis")).with_name("st")
    command = [str(program), "run", f"{served.url}/openapi.json", "--checks", "all", "--no-color"]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", "10", "--seed", "7"]
    done = subprocess.run(
        [*command, "--continue-on-failure", *FUZZED[what]],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5_000:]
    assert re.search(r"(\d+) generated, \1 passed", done.stdout), done.stdout[-1_500:]


# -- perf_analyzer --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def perf_analyzer() -> tuple[str, dict[str, str]]:
    """The program and its environment; on an older C library a private copy that loads there."""
    lock = ROOT / "requirements" / "judges" / "perf-analyzer.txt"
    folder = ROOT / ".venvs" / "perf-analyzer"
    mark = folder / "made-from"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    if not (mark.is_file() and mark.read_text() == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        fetch(lock, folder)
        mark.write_text(wanted)
    shim = folder / "shim.so"
    return str(folder / "perf_analyzer"), {"LD_PRELOAD": str(shim)} if shim.exists() else {}


def fetch(lock: Path, folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    where = ["--only-binary", ":all:", "--platform", "manylinux_2_38_x86_64", "--dest", str(folder)]
    done = subprocess.run(
        [*pip, "--require-hashes", *where, "-r", str(lock)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"NOT RUN perf_analyzer: {done.stderr.strip().splitlines()[-1][:200]}")
    (wheel,) = folder.glob("*.whl")
    shutil.unpack_archive(wheel, folder / "wheel", "zip")
    program, target = folder / "wheel/perf_analyzer/bin/perf_analyzer", folder / "perf_analyzer"
    version = os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0.0"
    if tuple(map(int, version.split()[1].split("."))) >= (2, 38):
        shutil.copy(program, target)
    else:
        make_loadable(program, target)
    target.chmod(0o755)


def make_loadable(program: Path, target: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("NOT RUN perf_analyzer: no g++ on this machine, and its C library is older than 2.38")
    here, shim = HERE / "perf_analyzer", target.with_name("shim.so")
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", shim, here / "shim.cc"], check=True, timeout=120)
    versions = ["GLIBC_2.38", "GLIBCXX_3.4.31", "GLIBCXX_3.4.32"]
    subprocess.run(
        [sys.executable, "-B", here / "weaken.py", program, target, *versions], check=True, timeout=60
    )


RUNS = {
    "http": [],
    "http shared memory": ["--shared-memory", "system", "--output-shared-memory-size", "64"],
    "grpc": [],
    "grpc shared memory": ["--shared-memory", "system", "--output-shared-memory-size", "64"],
}


@pytest.mark.parametrize("run", RUNS)
def test_perf_analyzer(
    served: ServerProcess, perf_analyzer: tuple[str, dict[str, str]], tmp_path: Path, run: str
):
    program, environment = perf_analyzer
    kind, report = run.split()[0], tmp_path / "report.csv"
    command = [program, "-m", "credit", "-u", address(served, kind), "-i", kind, "-b", "2", "-f", str(report)]
    command += ["--request-count", "200", "--concurrency-range", "4", *RUNS[run]]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=os.environ | environment
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3_000:]
    assert "Request count: " in done.stdout
    assert re.search(r"Throughput: [1-9]", done.stdout), done.stdout
    assert report.read_text().startswith("Concurrency,")
