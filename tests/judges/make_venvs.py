"""Make the environment of one outside judge under ``.venvs/`` and print where it is.

    python tests/judges/make_venvs.py NAME | node | all     names: rows of PYTHON_JUDGES below

Prints the judge's Python (or, for node, the folder with ``node_modules``). Judges are pinned by
hash and never share the project's own environment: they must not see our code, nor we theirs.
Doing it twice costs nothing; a changed lock makes it anew. Exit 0, or 3 with one line on standard
error that says which part this machine lacks. ``all`` makes what this machine can and says what it
cannot; the tests then report each missing judge as NOT RUN.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VENVS = ROOT / ".venvs"
INSTALL_TIMEOUT_S = 480
NODE_MIN = (20, 17)  # what the judge's packages declare


class MissingPartError(Exception):
    """A part this machine lacks."""


@dataclass(frozen=True)
class PythonJudge:
    lock: Path
    minors: tuple[int, ...]  # Python 3.x versions it runs on, best first


LOCKS = ROOT / "requirements/judges"
ANY = (11, 12, 13)
PYTHON_JUDGES = {
    "aics-tlog": PythonJudge(LOCKS / "aics-tlog.txt", (13, 12)),
    "kserve": PythonJudge(LOCKS / "kserve.txt", (11, 12)),
    "manifests": PythonJudge(LOCKS / "manifests.txt", ANY),
    "model-signing": PythonJudge(LOCKS / "model-signing.txt", ANY),
    "nginx": PythonJudge(LOCKS / "nginx.txt", ANY),
    "schemathesis": PythonJudge(LOCKS / "schemathesis.txt", ANY),
    "tensorrt-10": PythonJudge(LOCKS / "tensorrt-10.txt", ANY),
    "tensorrt-11": PythonJudge(LOCKS / "tensorrt-11.txt", ANY),
    "tritonclient": PythonJudge(LOCKS / "tritonclient.txt", ANY),
}


def find_python(minors: tuple[int, ...]) -> str:
    """An interpreter of one of these versions that really starts (a pyenv shim may not)."""
    for minor in minors:
        for candidate in _candidates(f"python3.{minor}"):
            check = f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, {minor}))"
            done = subprocess.run([candidate, "-c", check], capture_output=True, timeout=60, check=False)
            if done.returncode == 0:
                return candidate
    raise MissingPartError(f"no Python {' or '.join(f'3.{m}' for m in minors)} with venv on this machine")


def _candidates(name: str) -> list[str]:
    found = [sys.executable, shutil.which(name)]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += sorted(map(str, versions.glob(f"*/bin/{name}")), reverse=True)
    return [path for path in found if path]


def make_python(name: str) -> Path:
    judge = PYTHON_JUDGES[name]
    folder = VENVS / name
    python = folder / "bin" / "python"
    mark = folder / "made-from"
    wanted = hashlib.sha256(judge.lock.read_bytes()).hexdigest()
    if mark.is_file() and mark.read_text() == wanted and python.exists():
        return python
    base = find_python(judge.minors)
    shutil.rmtree(folder, ignore_errors=True)
    _run([base, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run([*pip, "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(judge.lock)])
    mark.write_text(wanted)
    return python


def make_node() -> Path:
    if not (shutil.which("node") and shutil.which("npm")):
        raise MissingPartError("no node and npm on this machine")
    said = subprocess.run(
        ["node", "--version"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    version = tuple(map(int, re.findall(r"\d+", said)[:2]))
    if version < NODE_MIN:
        raise MissingPartError(f"node {said.strip() or 'does not start'}, 20.17 or newer is needed")
    folder = VENVS / "node"
    mark = folder / "made-from"
    lock = HERE / "node" / "package-lock.json"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    if not (mark.is_file() and mark.read_text() == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for source in (lock, HERE / "node" / "package.json"):
            shutil.copy(source, folder)
        _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], folder=folder)
        mark.write_text(wanted)
    return folder


def _run(command: list[str], *, folder: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise MissingPartError(f"{command[0]} did not end within {INSTALL_TIMEOUT_S} s") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise MissingPartError(f"could not install: {last[:200]}")


def make(name: str) -> Path:
    """Make one judge, or find it made; two test runs at once do not make it twice."""
    VENVS.mkdir(exist_ok=True)
    with (VENVS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return make_node() if name == "node" else make_python(name)


def make_all(names: list[str]) -> None:
    for name in names:
        try:
            print(f"judge {name}: {make(name).relative_to(ROOT)}")
        except MissingPartError as reason:
            print(f"judge {name}: not on this machine: {reason}")


def main(arguments: list[str]) -> int:
    names = [*PYTHON_JUDGES, "node"]
    if len(arguments) != 1 or arguments[0] not in [*names, "all"]:
        print(f"usage: make_venvs.py {' | '.join([*names, 'all'])}", file=sys.stderr)
        return 2
    if arguments[0] == "all":
        make_all(names)
        return 0
    try:
        print(make(arguments[0]))
    except MissingPartError as reason:
        print(reason, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
