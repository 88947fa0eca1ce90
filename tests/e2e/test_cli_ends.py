"""Ctrl-C and SIGTERM at any moment of a command line: words, an exit code, no child left."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from pellucid.cli.main import VERBS
from pellucid.testing.builds import write_recipe

pytestmark = pytest.mark.e2e
SIGNALS = [signal.SIGINT, signal.SIGTERM]

# the signal comes when a module is looked for; what follows says how the look-up takes it
COMES_AT = """
import os, runpy, signal, sys
number, at, how, *sys.argv[1:] = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs this may ignore it

def ask():
    os.kill(os.getpid(), int(number))

class Finalised:
    def __del__(self):
        ask()

class Looked:
    def find_spec(self, name, path=None, target=None):
        if name != at:
            return
        sys.meta_path.remove(self)
        if how == "finaliser":
            Finalised()
            while True:  # it comes again
                os.sched_yield()
        try:
            ask()
        except KeyboardInterrupt:
            if how == "another error":
                raise ImportError("initialization failed")
            raise

sys.meta_path.insert(0, Looked())
runpy.run_module("pellucid", run_name="__main__", alter_sys=True)
"""


def ended(number: signal.Signals, at: str, *words: str, how: str = "") -> tuple[int, str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", COMES_AT, str(int(number)), at, how, *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr.split("\n")


def is_interrupted(result: tuple[int, str, list[str]]) -> bool:
    code, out, err = result
    return (code, out, [line for line in err if line]) == (130, "", ["interrupted"])


@pytest.mark.parametrize("verb", VERBS)
def test_a_request_while_a_verb_is_loaded(verb: str) -> None:
    for number in SIGNALS:
        assert is_interrupted(ended(number, f"pellucid.cli.{VERBS[verb][0]}", verb, "--help"))


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("at", ["pellucid.cli.main", "click", "pellucid.core.words", "pellucid.errors"])
def test_a_request_before_any_verb_is_known(at: str, number: signal.Signals) -> None:
    assert is_interrupted(ended(number, at, "verify", "--help"))


@pytest.mark.parametrize("how", ["another error", "finaliser"])
@pytest.mark.parametrize("at", ["click", "pellucid.cli.verify"])
def test_a_request_that_a_library_keeps_to_itself(at: str, how: str) -> None:
    assert is_interrupted(ended(signal.SIGINT, at, "verify", "--help", how=how))


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("at", ["pellucid.app.build", "pellucid.build.child", "pellucid.build.stages"])
def test_a_request_before_a_build_listens_itself(tmp_path: Path, at: str, number: signal.Signals) -> None:
    recipe = write_recipe(tmp_path, "digits_like")
    assert is_interrupted(ended(number, at, "build", str(recipe), "--site", str(site(tmp_path))))
    assert not (tmp_path / "site/packages/failed").exists()


def site(folder: Path) -> Path:
    from pellucid.app.site import create_site

    return create_site(folder / "site", node="test1").root


def test_whoever_ignores_ctrl_c_goes_on() -> None:
    """As below ``nohup``, or in the background of a script."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "import pellucid.cli.main as verbs\n"
        "verbs.main = lambda: (os.kill(os.getpid(), signal.SIGINT), print('goes on'))\n"
        "from pellucid.cli.start import main\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("goes on\n", "")


def test_an_error_that_nobody_asked_for_is_told_whole() -> None:
    code = (
        "import pellucid.cli.main as verbs\n"
        "class Bad:\n    def __del__(self): raise ValueError('in a finaliser')\n"
        "def run():\n    Bad()\n    raise ValueError('at the top')\n"
        "verbs.main = run\nfrom pellucid.cli.start import main\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "ValueError: in a finaliser" in done.stderr
    assert "Traceback" in done.stderr
    assert "ValueError: at the top" in done.stderr


# a child that would outlive its parent: it hears nothing, and no kernel ends it with its parent
LEAVES_A_CHILD = """
import os, signal, sys, tempfile
from pathlib import Path
from pellucid.build import child
import pellucid.cli.main as verbs
signal.signal(signal.SIGINT, signal.default_int_handler)
number, entry = int(sys.argv[1]), sys.argv[2]
child.measures = lambda: child.Measures((), {})

def heard(pid):
    print(pid, flush=True)
    os.kill(os.getpid(), number)

def run():
    with tempfile.TemporaryDirectory() as scratch:
        print(scratch, flush=True)
        child.run_child(entry, None, Path(scratch), timeout_s=60, on_frame=heard)

verbs.cli.main = lambda *_, **__: run()
from pellucid.cli.start import main
main()
"""
DEAF = (
    "import os, signal, sys; from pellucid.build.frame import write_frame; "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); write_frame(sys.stdout.buffer, os.getpid())\n"
    "while True: signal.pause()"
)


@pytest.mark.parametrize("number", SIGNALS)
def test_no_child_and_no_folder_is_left(number: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_A_CHILD, str(int(number)), DEAF],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    scratch, pid = done.stdout.split()
    assert (done.returncode, done.stderr.split()) == (130, ["interrupted"])
    assert not Path(scratch).exists()
    assert not Path(f"/proc/{pid}").exists()


def test_the_command_begins_where_these_begin() -> None:
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module, _, name = declared["project"]["scripts"]["pellucid"].partition(":")
    assert callable(getattr(import_module(module), name))
    assert module == import_module("pellucid.cli.start").__name__
