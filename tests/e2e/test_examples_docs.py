"""Every ``sh`` block of the examples' READMEs and of the how-to pages, run as it stands."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pellucid.testing.models import digits_like

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
HOW_TO = (
    "first-site.md",
    "answer-a-regulator.md",
    "verify-without-us.md",
    "watch-a-model.md",
    "erase-a-person.md",
)
SCRIPT_S = 240

# The server of a terminal of its own: in the background, waited for through --ready-fd, ended at the end.
SERVE = """
mkfifo "$TMPDIR/ready"
pellucid serve --port {port} --ready-fd 9 9>"$TMPDIR/ready" &
SERVER=$!
trap 'kill $SERVER; wait $SERVER || true' EXIT
read -r -t 60 LINE < "$TMPDIR/ready"
"""


def blocks(page: Path) -> list[str]:
    found = re.findall(r"(?ms)^```sh\n(.*?)^```$", page.read_text())
    assert found, f"{page}: expected commands, got none"
    return found


def run(script: str, folder: Path) -> str:
    """Run a script as a reader would, with only what a shell gives."""
    home, temporary = folder / "home", folder / "tmp"
    home.mkdir()
    temporary.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=SCRIPT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.parametrize(("example", "site"), [("credit", "bank"), ("digits", "post")])
def test_readme_of_an_example_and_its_training_repeats(example: str, site: str, tmp_path: Path) -> None:
    output = run("\n".join(blocks(ROOT / "examples" / example / "README.md")), tmp_path)
    assert "allows it" in output
    command = [sys.executable, "-I", str(ROOT / "examples" / example / "train.py"), "--out"]
    subprocess.run([*command, str(tmp_path / "again")], check=True, capture_output=True, timeout=120)
    first, again = tmp_path / site / "recipes" / example, tmp_path / "again"
    files = sorted(path.name for path in again.iterdir())
    assert "model.onnx" in files
    assert [n for n in files if (first / n).read_bytes() != (again / n).read_bytes()] == []


def test_how_to_pages_one_after_the_other(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    parts = [block for page in HOW_TO for block in blocks(ROOT / "docs" / "how-to" / page)]
    script = "\n".join(SERVE.format(port=port) if part == "pellucid serve\n" else part for part in parts)
    assert "mkfifo" in script
    output = run(script.replace("pellucid call ", f"pellucid call --url http://127.0.0.1:{port} "), tmp_path)
    for said in (
        "bit-exact",
        "HOLDS",
        "continues the checkpoint you saw",
        "Every value is as it was signed",
        "exit 6",
        "too few to compare",
        "verbose for credit until",
    ):
        assert said in output


def test_how_to_build_for_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")
    page = ROOT / "docs" / "how-to" / "build-for-a-gpu.md"
    (recipe,) = re.findall(r"(?ms)^```yaml\n(.*?)^```$", page.read_text())
    _, commands = blocks(page)  # the first installs
    (tmp_path / "recipe.yaml").write_text(recipe)
    (tmp_path / "digits.onnx").write_bytes(digits_like())
    assert "Signed digits-v1.0.0-tensorrt-rtx" in run(commands, tmp_path)


def test_first_commands_of_the_readme() -> None:
    """The README opens with the two commands, and make knows both."""
    first = re.search(r"```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert first is not None
    assert first[1].split("\n")[:2] == ["make demo", "make test"]
    for target in ("demo", "test"):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
