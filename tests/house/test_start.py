"""How a command's processes begin and end: what takes time there and is not the work that was asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pellucid.app.site import create_site

# every process of a build loads this before it can read what it is to do
BASE = "pellucid.app.processes, pellucid.build.worker"
_DATACLASSES = (
    "made = {f'{kind.__module__}.{kind.__qualname__}' for name, module in list(sys.modules.items())"
    " if name.startswith('pellucid') for kind in vars(module).values()"
    " if isinstance(kind, type) and '__dataclass_fields__' in vars(kind)}"
)


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_a_command_ends_without_a_search_for_cycles_and_with_all_that_is_to_happen_at_its_end():
    said = _run(
        "import atexit, gc, sys, weakref\n"
        "from pellucid.cli.start import main\n"
        "class Kept: pass\n"
        "kept = Kept()\n"
        "atexit.register(lambda: print('FROZEN', gc.get_freeze_count() > 0))\n"
        "weakref.finalize(kept, print, 'FINALISED')\n"
        "sys.argv = ['pellucid', '--version']\n"
        "main()\n"
    )
    assert "FROZEN True" in said
    assert "FINALISED" in said


@pytest.mark.parametrize("base", [BASE, "pellucid.app.processes, pellucid.build.isolated_engine"])
def test_a_process_hears_what_it_is_to_do_before_it_loads_a_library(base):
    said = _run(
        f"import sys, {base}\n"
        "slow = {'numpy', 'onnx', 'onnxruntime', 'tensorrt_rtx', 'google', 'yaml', 'cryptography', 'click'}\n"
        "rare = {'dataclasses', 'subprocess', 'tempfile', 'shutil', 'random', 'json', 'email', 'http',\n"
        "        'asyncio', 'logging', 'importlib.metadata', 'importlib.resources'}\n"
        "rooms = {'pellucid.build.child', 'pellucid.build.stages', 'pellucid.build.job', 'pellucid.config',\n"
        "         'pellucid.core.recipe'}\n"
        "print('LOADED', sorted((slow | rare | rooms) & set(sys.modules)))"
    )
    assert said == "LOADED []\n"


def test_a_process_of_a_build_seldom_looks_for_cycles_while_its_libraries_load():
    said = _run(
        "import gc\n"
        "from pellucid.app import processes\n"
        "from pellucid.build import worker\n"
        "before = gc.get_stats()[0]['collections']\n"
        "def main(backend_for):\n"
        "    import pellucid.build.judge\n"
        "    print('OFTEN', gc.get_stats()[0]['collections'] - before > 10, gc.isenabled())\n"
        "    return 0\n"
        "worker.main = main\n"
        "processes.worker_main()\n"
    )
    assert said == "OFTEN False True\n"


@pytest.mark.parametrize(
    "module",
    [
        "pellucid.build.prepare", "pellucid.build.judge", "pellucid.build.golden", "pellucid.build.preflight",
        "pellucid.backends.onnxruntime.adapter", "pellucid.backends.tensorrt.adapter",
        "pellucid.build.precision_half", "pellucid.build.precision_int8",
    ],
)  # fmt: skip
def test_no_process_of_a_build_makes_the_class_of_a_dataclass(module):
    said = _run(f"import sys, {BASE}, {module}\n{_DATACLASSES}\nprint('MADE', sorted(made))")
    assert said == "MADE []\n"


def test_a_build_starts_its_first_processes_before_it_loads_what_it_does_itself():
    said = _run(
        "import sys\n"
        "from pellucid.build import stages\n"
        "from pellucid.cli.main import main\n"
        "later = {'yaml', 'tomllib', 'rich', 'dataclasses', 'pellucid.config', 'pellucid.app.site',\n"
        "         'pellucid.build.job', 'pellucid.core.recipe', 'pellucid.ports'}\n"
        "def start(entry, progress):\n"
        "    print('LOADED', sorted(later & set(sys.modules)))\n"
        "    sys.exit()\n"
        "stages.start = start\n"
        "try: main(['build', 'recipe.yaml', '--site', 'site'])\n"
        "except SystemExit: pass\n"
    )
    assert said == "LOADED []\n"


def test_nothing_is_left_to_load_when_a_build_is_recorded(tmp_path):
    create_site(tmp_path / "site", node="test1")
    said = _run(
        "import sys\n"
        "from pathlib import Path\n"
        "from pellucid.app import build\n"
        "from pellucid.app.site import open_site\n"
        f"site = open_site(Path({str(tmp_path / 'site')!r}))\n"
        "build._load_ledger(site)\n"
        "before = set(sys.modules)\n"
        "build._Recorder(site).event('read', {'what': 'nothing'})\n"
        "print('LEFT', sorted(set(sys.modules) - before))\n"
    )
    assert said == "LEFT []\n"


def test_what_records_a_build_loads_nothing_that_judges_packages_or_checks_ledgers():
    said = _run(
        "import sys, pellucid.build.job, pellucid.build.package, pellucid.app.ledger, pellucid.keys.file\n"
        "import pellucid.core.model_signing, pellucid.indexes.sqlite, pellucid.stores.file\n"
        "rooms = {'pellucid.core.policy', 'pellucid.core.trust', 'pellucid.core.attestation',\n"
        "         'pellucid.ledger.fsck', 'importlib.resources', 'importlib.metadata', 'rich'}\n"
        "print('LOADED', sorted(rooms & set(sys.modules)))"
    )
    assert said == "LOADED []\n"
