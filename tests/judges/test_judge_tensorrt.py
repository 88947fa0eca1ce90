"""The adapter against the real modules of tensorrt 10, tensorrt 11 and tensorrt_rtx: names and arguments.

The modules are real, the libraries below them are not (but for tensorrt_rtx): what the adapter uses is
recorded while it builds and serves, and every recorded name and number of arguments must be one that
the module declares.
"""

from __future__ import annotations

import ast
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pellucid.backends.tensorrt.adapter import TensorRtBackend
from pellucid.backends.tensorrt.library import Features, Library, features_of, library_of
from pellucid.backends.tensorrt.preflight import findings
from pellucid.errors import ParseError
from pellucid.testing import tensorrt_fake as fake
from pellucid.testing.cuda_fake import DriverFake
from pellucid.testing.models import MODELS, digits_like
from pellucid.testing.tensorrt_recorder import Recorder, Used

rtx = pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")

pytestmark = pytest.mark.judge
HERE = Path(__file__).parent
SPOKEN = {  # what the library calls in us, and with how many arguments
    "ILogger.log": 2, "IProgressMonitor.phase_start": 3, "IProgressMonitor.step_complete": 2,
    "IProgressMonitor.phase_finish": 1,
}  # fmt: skip
RECIPE: dict[str, Any] = {
    "target": "sm89", "tf32": False, "workspace_bytes": 2**32, "buckets": [1, 4], "pinned_bucket": None,
}  # fmt: skip
# attributes of the same name elsewhere: of our features, of ctypes' and of ONNX's values
PYTHONS = {"device_memory", "itemsize", "value", "FLOAT", "INT64"}
Names = Mapping[str, Mapping[str, str]]


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("NOT RUN cc: no C compiler on this machine")
    folder = tmp_path_factory.mktemp("stubs")
    first = folder / "libnvinfer.so.10"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", first, HERE / "tensorrt_stub.c"], check=True)
    for part in ("nvinfer", "nvinfer_plugin", "nvonnxparser"):
        for version in ("10", "11"):
            place = folder / f"lib{part}.so.{version}"
            if place != first:
                shutil.copy(first, place)
    return folder


def listed(python: str, module: str, stubs: Path) -> tuple[str, Names]:
    done = subprocess.run(
        [python, str(HERE / "tensorrt_names.py"), module], capture_output=True, text=True, timeout=120,
        env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(stubs), "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    return found["version"], found["classes"]


@pytest.fixture(scope="module", params=["10.13.3.9", "11.4.0.106", "rtx"])
def module(request: pytest.FixtureRequest, stubs: Path) -> tuple[str, Names]:
    """Version as asked for, and the names of the real module."""
    if request.param == "rtx":
        return "rtx", listed(sys.executable, "tensorrt_rtx", stubs)[1]
    name = f"tensorrt-{request.param[:2]}"
    made = subprocess.run(
        [sys.executable, str(HERE / "make_venvs.py"), name], capture_output=True, text=True, timeout=540
    )
    if made.returncode:
        pytest.skip(f"NOT RUN {name}: {made.stderr.strip()[:200] or 'could not be made'}")
    version, names = listed(made.stdout.strip(), "tensorrt_bindings", stubs)
    assert version == request.param
    return version, names


def view(names: Names) -> Any:
    """A module with these names and nothing behind them."""
    kinds = {kind: SimpleNamespace(**dict.fromkeys(members, 0)) for kind, members in names.items()}
    return SimpleNamespace(__version__="0", **kinds)


EXPECTED: dict[str, Features] = {
    "10.13.3.9": Features(
        cross_target=False, strongly_typed=True, tf32=True, monitor_memory=True, progress=True,
        timing_cache=True, hardware_compatibility=True, eager_kernels=False, engine_stat=False,
        device_memory="device_memory_size_v2",
    ),
    "11.4.0.106": Features(
        cross_target=False, strongly_typed=True, tf32=True, monitor_memory=True, progress=True,
        timing_cache=True, hardware_compatibility=True, eager_kernels=False, engine_stat=True,
        device_memory="device_memory_size_v2",
    ),
    "rtx": Features(
        cross_target=True, strongly_typed=True, tf32=True, monitor_memory=True, progress=True,
        timing_cache=False, hardware_compatibility=False, eager_kernels=True, engine_stat=True,
        device_memory="device_memory_size_v2",
    ),
}  # fmt: skip


def test_features_are_found_in_the_module_itself(module: tuple[str, Names]) -> None:
    version, names = module
    assert features_of(view(names)) == EXPECTED[version]


def recorded(library: Library) -> tuple[Recorder, TensorRtBackend]:
    recorder = Recorder(library.trt)
    return recorder, TensorRtBackend(replace(library, trt=recorder))


def of_a_real_build(model: bytes) -> Used:
    recorder, backend = recorded(library_of("tensorrt-rtx", rtx))
    try:
        assert backend.build(RECIPE, model, lambda line: None).engine
    except ParseError:
        assert model != digits_like()
    return recorder.used


def of_a_preflight() -> Used:
    recorder = Recorder(rtx)
    library = replace(library_of("tensorrt-rtx", rtx), trt=recorder)
    assert findings(library, RECIPE, MODELS["dynamically_quantised"](), lambda line: None)
    assert not findings(library, RECIPE, digits_like(), lambda line: None)
    return recorder.used


def of_the_stand_in(features: Features, monkeypatch: pytest.MonkeyPatch) -> Used:
    """Names used in a build (where the library builds for the GPU at hand) and on that GPU."""
    driver = DriverFake()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(fake.IExecutionContext, "copy", driver.copy, raising=False)
    library = replace(library_of("tensorrt", fake), features=replace(features, cross_target=False))
    maker, backend = recorded(library)
    shapes = [{"min": [1, 1, 8, 8], "opt": [n, 1, 8, 8], "max": [8, 1, 8, 8]} for n in (1, 8)]
    profiles = [{"name": f"p{n}", "inputs": {"image": shape}} for n, shape in enumerate(shapes)]
    engine = backend.build(RECIPE | {"profiles": profiles}, digits_like(), lambda line: None).engine
    server, backend = recorded(library)
    running = backend.open(engine, RECIPE)
    from pellucid.core.tensor import Tensor

    for rows in (1, 8):
        running.infer([Tensor("image", "FP32", (rows, 1, 8, 8), bytes(256 * rows))])
    assert running.describe()
    running.close()
    return server.used if features.cross_target else merged(maker.used, server.used)


def merged(*several: Used) -> Used:
    whole: Used = {}
    for used in several:
        for name, counts in used.items():
            whole.setdefault(name, set()).update(counts)
    return whole


def test_every_name_that_the_adapter_uses_is_the_modules(
    module: tuple[str, Names], monkeypatch: pytest.MonkeyPatch
) -> None:
    version, names = module
    parse_errors = {
        name: counts
        for name, counts in merged(
            of_a_real_build(MODELS["dynamically_quantised"]()), of_a_preflight()
        ).items()
        if name.partition(".")[0] in ("OnnxParser", "ParserError")
    }
    assert "ParserError.node_operator" in parse_errors
    used = merged(of_the_stand_in(EXPECTED[version], monkeypatch), parse_errors)
    if version == "rtx":
        used = merged(used, of_a_real_build(digits_like()))
        assert used["IBuilderConfig.set_compute_capability"] == {2}
    assert used["IExecutionContext.execute_async_v3"] == {1}
    assert len(used) > 60
    wrong = {name: why for name, counts in used.items() if (why := unfit(names, name, counts))}
    assert wrong == {}


def test_what_the_library_calls_in_us_takes_what_it_passes(module: tuple[str, Names]) -> None:
    wrong = {name: why for name, count in SPOKEN.items() if (why := unfit(module[1], name, {count}))}
    assert wrong == {}


def test_the_stand_in_has_no_name_of_its_own(module: tuple[str, Names], stubs: Path) -> None:
    """Names that only the other module has are that module's; any other name is an invention."""
    everywhere: dict[str, set[str]] = {}
    for names in (module[1], listed(sys.executable, "tensorrt_rtx", stubs)[1]):
        for kind, members in names.items():
            everywhere.setdefault(kind, set()).update(members)
    if module[0] == "rtx":
        everywhere["ICudaEngine"].add("device_memory_size")  # gone from it, still in 10
    ours = {"IExecutionContext": {"copy", "profiles"}}  # the test's own handles
    kinds = {n: kind for n, kind in vars(fake).items() if isinstance(kind, type) and n[0] != "_"}
    kinds = {n: kind for n, kind in kinds.items() if kind.__module__ == fake.__name__}
    assert set(kinds) <= set(everywhere)
    public = {n: {m for m in vars(kind) if m[0] != "_"} - ours.get(n, set()) for n, kind in kinds.items()}
    made_up = {n: members - everywhere[n] for n, members in public.items() if members - everywhere[n]}
    assert made_up in ({}, {"ICudaEngine": {"device_memory_size"}})
    assert made_up == {} or module[0] == "11.4.0.106"


def unfit(names: Names, name: str, counts: set[int]) -> str:
    """Why a use does not fit the module, or ``""``."""
    kind, _, member = name.partition(".")
    if kind not in names:
        return "no such class"
    if not member:
        return ""
    if member not in names[kind]:
        return "no such member"
    takes = [arguments(text) for text in signatures(member, names[kind][member])]
    wrong = [n for n in counts if takes and not any(low <= n <= high for low, high in takes)]
    if counts and not takes:
        return "called, but it declares no arguments"
    return f"called with {wrong}, declared {takes}" if wrong else ""


def signatures(member: str, text: str) -> list[str]:
    """What stands between the parentheses of each declaration in a docstring."""
    found = re.findall(rf"^(?:\d+\. )?{re.escape(member)}\((.*)\) -> ", text, re.MULTILINE)
    return [inside for inside in found if not inside.startswith("*args")]


def arguments(inside: str) -> tuple[int, int]:
    """Fewest and most arguments besides ``self``."""
    flat = re.sub(r"<[^<>]*>", "", inside)
    while (less := re.sub(r"[\[(][^\[\]()]*[\])]", "", flat)) != flat:
        flat = less
    parts = [part for part in flat.split(",") if part.strip()][1:]
    return sum("=" not in part for part in parts), len(parts)


def test_the_check_itself_finds_what_is_wrong(module: tuple[str, Names]) -> None:
    names = module[1]
    assert unfit(names, "IBuilderConfig.max_workspace_size", set()) == "no such member"
    assert unfit(names, "IExecutionContext.execute_async_v2", {2}) == "no such member"
    assert unfit(names, "IAlgorithmFinder", set()) == "no such class"
    assert unfit(names, "IBuilderConfig.set_timing_cache", {1}) == "called with [1], declared [(2, 2)]"
    assert unfit(names, "IExecutionContext.execute_async_v3", {0}).startswith("called with [0]")
    assert arguments("self: a.B, x: list[int, int], y: c = <D.E: 0>, z: str = None") == (1, 3)


def test_no_name_of_the_library_is_used_unrecorded(stubs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every attribute in the adapter's source that a class it uses has was seen in use."""
    names = listed(sys.executable, "tensorrt_rtx", stubs)[1]
    features = replace(EXPECTED["11.4.0.106"], eager_kernels=True)
    used = merged(
        of_the_stand_in(features, monkeypatch),
        of_a_real_build(digits_like()),
        of_a_real_build(MODELS["dynamically_quantised"]()),
        of_a_preflight(),
    )
    seen = {name.rpartition(".")[2] for name in used} | {name.rpartition(".")[2] for name in SPOKEN}
    known = {member for kind in {name.partition(".")[0] for name in used} for member in names.get(kind, ())}
    sources = (Path(__file__).parents[2] / "src/pellucid/backends/tensorrt").glob("*.py")
    written = {
        node.attr
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert (written & known) - seen == PYTHONS
