"""Writes docs/reference/onnx-backend-models.md from a real run: each model tried with each backend.

    .venv/bin/python docs/backend_models.py

Needs `onnxruntime` and `tensorrt_rtx`, no GPU, and about two minutes.
"""

from __future__ import annotations

import datetime
import platform
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from pellucid.testing.backend_models import FOLDERS, Outcome, model_paths, summary, survey

PAGE = Path(__file__).resolve().parent / "reference" / "onnx-backend-models.md"
RAISED = {"canonical": {"opset": 17, "fold": True}}
RUNS = {  # title -> backend, what differs from its default recipe
    "onnxruntime, cpu": ("onnxruntime", {}),
    "onnxruntime, cpu, `canonical: {opset: 17, fold: true}`": ("onnxruntime", RAISED),
    "tensorrt-rtx, sm89": ("tensorrt-rtx", {}),
}
NOTE = "<!-- Written by docs/backend_models.py from a real run. Do not edit. -->\n\n"


def main() -> None:
    models = model_paths([*FOLDERS, "light"])
    tried = {
        title: survey(backend, models, changes=changes, timeout_s=900)
        for title, (backend, changes) in RUNS.items()
    }
    PAGE.write_text(NOTE + "".join(page(tried)))


def page(tried: dict[str, list[Outcome]]) -> Iterator[str]:
    """The page, piece by piece."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    versions = [f"{name} {metadata.version(name)}" for name in ("onnx", "onnxruntime", "tensorrt_rtx")]
    yield "# The models of ONNX's backend test\n\n"
    yield (
        f"Every model below `onnx/backend/test/data/` of the onnx wheel, foreseen by preflight, made "
        f"canonical and built with the default recipe of each backend. Run on {today} with "
        f"{', '.join(versions)} and Python {platform.python_version()} on {platform.machine()}, without a "
        "GPU: an engine of TensorRT-RTX was built, and executed nowhere.\n\n"
    )
    yield "| models | of | " + " | ".join(RUNS) + " |\n"
    yield "|---" * (2 + len(RUNS)) + "|\n"
    rows = {
        backend: {folder: (n, built) for folder, n, built, _ in summary(o)} for backend, o in tried.items()
    }
    for folder, (count, _) in next(iter(rows.values())).items():
        built = " | ".join(f"{rows[backend][folder][1]} built" for backend in rows)
        yield f"| `{folder}` | {count} | {built} |\n"
    yield "\nNo model ended its process. Every refusal was foreseen; no model foreseen to fail was built.\n"
    for title, outcomes in tried.items():
        crashed = [o.model for o in outcomes if o.stage == "crash"]
        wrong = [o.model for o in outcomes if o.built == bool(o.foreseen)]
        if crashed or wrong:
            raise SystemExit(f"{title}: crashed {crashed}, not as foreseen {wrong}")
        yield f"\n## Refused by {title}\n\n| model | where | what to change |\n|---|---|---|\n"
        yield from refusals([o for o in outcomes if not o.built])


def refusals(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """One row a model; places in our words, the library's own are left to its log."""
    for outcome in outcomes:
        places = Counter(where for where, _, _ in outcome.foreseen if where != "model")
        fixes = dict.fromkeys(fix for _, _, fix in outcome.foreseen if fix)
        where, fix = "; ".join(places), "; ".join(fixes)
        yield f"| `{outcome.model}` | {_cell(where)} | {_cell(fix)} |\n"


def _cell(text: str) -> str:
    return re.sub(r"[|<>]", " ", text)


if __name__ == "__main__":
    main()
