"""The demo, run as a newcomer would, with nothing but loopback: what it leaves, and what it must not.

One run for all tests here; HOME and TMPDIR are empty folders, and where the kernel lets us the
processes live in a network namespace that has nothing but ``lo``.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

DEMO_S = 360  # limit: it takes about a minute on two idle cores
ROOT = Path(__file__).resolve().parents[2]

# Bring lo up without any tool, then become the command.
LOOPBACK = """
import fcntl, os, socket, struct, sys
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh", b"lo", 0x41))
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True)
class Run:
    folder: Path
    home: Path
    temporary: Path
    output: str
    errors: str
    code: int
    isolated: bool


def namespace() -> list[str]:
    """Words that start a command with nothing but loopback; ``[]`` where the kernel refuses."""
    for flags in (["-rn"], ["-n"]):
        unshare = shutil.which("unshare")
        if unshare is None:
            return []
        words = [unshare, *flags, sys.executable, "-I", "-c", LOOPBACK]
        probe = subprocess.run([*words, sys.executable, "-I", "-c", ""], capture_output=True, check=False)
        if probe.returncode == 0:
            return words
    return []


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Run:
    base = tmp_path_factory.mktemp("demo")
    home, temporary, folder = base / "home", base / "tmp", base / "place" / ".demo"
    for made in (home, temporary, folder.parent):
        made.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(temporary), "LANG": "C.UTF-8"}
    words = namespace()
    command = [*words, sys.executable, "-I", str(ROOT / "examples" / "demo.py"), "--folder", str(folder)]
    done = subprocess.run(
        command, cwd=folder.parent, env=environment, capture_output=True, timeout=DEMO_S, check=False
    )
    output, errors = done.stdout.decode(), done.stderr.decode()
    return Run(folder, home, temporary, output, errors, done.returncode, bool(words))


def test_demo_holds_every_promise(demo: Run) -> None:
    assert demo.code == 0, demo.output[-4000:] + demo.errors[-4000:]
    assert "What was proven" in demo.output
    assert demo.output.count("✓ caught: ") == 6


def test_demo_leaves_what_it_says(demo: Run) -> None:
    for name in ("packages", "ledger", "trust", "bundle.zip", "report.html"):
        assert (demo.folder / name).exists(), name
    assert len(list((demo.folder / "packages").glob("*.tar.gz"))) == 2


def test_the_page_names_what_was_caught_and_no_person(demo: Run) -> None:
    page = (demo.folder / "report.html").read_text()
    assert "bit-exact" in page
    assert "older than the checkpoint you saw" in page
    assert "applicant-" not in page


def test_demo_reads_well_when_piped(demo: Run) -> None:
    assert "\x1b" not in demo.output, "colour codes in a pipe"
    rules = [line for line in demo.output.splitlines() if "───" in line]
    assert rules
    assert all(len(line) <= 100 for line in rules)


def test_demo_names_no_folder_of_this_machine(demo: Run) -> None:
    assert str(ROOT) not in demo.output
    assert str(demo.folder.parent) not in demo.output


def test_a_third_of_the_calls_shared_a_batch(demo: Run) -> None:
    share = re.search(r"(\d+)% of (\d+) calls shared", demo.output)
    assert share is not None
    assert int(share[1]) >= 34
    assert int(share[2]) >= 400


def test_the_bundle_holds_for_a_stranger_and_not_when_altered(demo: Run, tmp_path: Path) -> None:
    verifier = shutil.copy2(ROOT / "src/pellucid/evidence/verify.py", tmp_path)
    bundle = shutil.copy2(demo.folder / "bundle.zip", tmp_path)
    command = [sys.executable, "-I", "-S", verifier, bundle, "--trust", str(demo.folder / "trust")]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    raw = bytearray(Path(bundle).read_bytes())
    raw[len(raw) // 3] ^= 1
    Path(bundle).write_bytes(raw)
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, check=False)
    assert done.returncode == 3, done.stdout + done.stderr


# -- nothing sent, nothing left behind ------------------------------------------------------------


def test_nothing_is_written_outside_its_folder(demo: Run) -> None:
    """ONNX Runtime with its reporting on leaves files in both; see ``test_the_watch_can_see``."""
    assert everything(demo.home) == []
    assert everything(demo.temporary) == []
    assert everything(demo.folder.parent) == [demo.folder.name]


def test_the_watch_can_see(tmp_path: Path) -> None:
    """With reporting left on, the library does write: the test above is no blind one."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    words = namespace()
    if not words:
        pytest.skip("NOT RUN telemetry-control: no network namespace, so reporting stays off here")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(temporary)}
    command = [*words, sys.executable, "-I", "-c", "import onnxruntime"]
    subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True)
    assert everything(home) or everything(temporary)


def test_the_demo_ran_with_nothing_but_loopback(demo: Run) -> None:
    if not demo.isolated:
        pytest.skip("NOT RUN network-namespace: this kernel or user may not make one")
    assert demo.code == 0


def everything(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- nothing about a person where it must not stand -----------------------------------------------


@pytest.fixture(scope="module")
def applicants(demo: Run) -> list[dict[str, str]]:
    with (demo.folder / "recipes" / "credit" / "applicants.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.fixture(scope="module")
def rows(applicants: list[dict[str, str]]) -> list[bytes]:
    scope: dict[str, object] = {"__name__": "preprocess"}
    exec((ROOT / "examples/credit/preprocess.py").read_text(), scope)
    encode = scope["encode"]
    assert callable(encode)
    return [encode(applicant) for applicant in applicants]


def spellings(row: bytes) -> list[bytes]:
    """A row as it could stand in a file: binary, base64 at any alignment, JSON with and without spaces."""
    values = struct.unpack(f"<{len(row) // 4}f", row)
    coded = [base64.b64encode(b"\0" * lead + row) for lead in range(3)]
    inner = [coded[0][:-4], coded[1][4:-4], coded[2][4:-4]]
    spaced = json.dumps(values)[1:-1].encode()
    return [row, *inner, spaced, spaced.replace(b", ", b",")]


def contents(*folders: Path) -> dict[str, bytes]:
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): path.read_bytes() for path in files}


def found(needles: list[bytes], haystack: dict[str, bytes]) -> list[str]:
    return [
        f"{name}: {needle[:60]!r}" for name, raw in haystack.items() for needle in needles if needle in raw
    ]


def test_no_input_row_stands_in_ledger_logs_or_tmp(demo: Run, rows: list[bytes]) -> None:
    needles = [spelling for row in rows for spelling in spellings(row)]
    haystack = contents(demo.folder / "ledger", demo.temporary)
    haystack["server.log"] = (demo.folder / "server.log").read_bytes()
    haystack["output"] = demo.output.encode()
    assert len(haystack) > 5
    assert found(needles, haystack) == []


def test_the_search_for_rows_can_find(demo: Run, rows: list[bytes]) -> None:
    """The bank's own validation data holds the rows, so the search is no blind one."""
    assert found([rows[0]], contents(demo.folder / "recipes"))


def test_no_value_of_an_applicant_stands_in_tiles_logs_or_tmp(
    demo: Run, applicants: list[dict[str, str]]
) -> None:
    texts = {value for row in applicants for value in row.values() if len(value) >= 10}
    people = {f"applicant-{number:04d}" for number in range(len(applicants))}
    needles = [text.encode() for text in sorted(texts | people)]
    haystack = contents(demo.folder / "ledger" / "tile", demo.temporary)
    haystack["server.log"] = (demo.folder / "server.log").read_bytes()
    assert haystack["server.log"].count(b'"output_label"') >= 400, "the structured log is on"
    assert found(needles, haystack) == []
    vault = contents(demo.folder / "ledger")
    assert found([b"applicant-0399"], vault), "the vault holds subjects, so the search is no blind one"


def test_the_erased_are_gone_from_vault_and_index(demo: Run) -> None:
    erased = re.search(r"ledger erase --subject (applicant-\d{4})", demo.output)
    assert erased is not None
    assert found([erased[1].encode()], contents(demo.folder / "ledger")) == []
