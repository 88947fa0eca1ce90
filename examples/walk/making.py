"""Stations 1 to 4: a site, two models, their packages, what a device says of them."""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path
from typing import Any

from walk.state import HERE, MARK, MODELS, Applicant, Walk


def make_site(walk: Walk) -> None:
    stage = walk.stage
    stage.station(
        "A bank sets up",
        "Keys, configuration and policy, in one folder. The auditor gets trust/ now, on the first day:\n"
        "what is checked later stands or falls with it.",
    )
    made = stage.ask("init", str(walk.site), "--node", "branch1", "--origin", "bank.example/credit")
    (walk.site / MARK).touch()
    walk.auditor.mkdir()
    shutil.copytree(walk.site / "trust", walk.auditor / "trust")
    stage.good(f"log {made['origin']}; its key signs checkpoints and nothing else")
    stage.good("the auditor has copied trust/")


def train(walk: Walk) -> None:
    stage = walk.stage
    stage.station(
        "Two models",
        "Trained here, now, on public data. Sex, age and foreign worker are kept away from the credit\n"
        "model; they come back as slices of the accuracy report.",
    )
    for name in MODELS:
        script = HERE / name / "train.py"
        out = walk.site / "recipes" / name
        stage.show("python", f"examples/{name}/train.py", "--out", str(out))
        done = stage.script(sys.executable, str(script), "--out", str(out))
        stage.need(done.returncode == 0, f"train {name}: {done.stderr[-1500:]}")
        stage.good(f"{name}: {done.stdout.splitlines()[0]}")
    walk.applicants = held_out(walk.site / "recipes" / "credit")


def held_out(folder: Path) -> list[Applicant]:
    """The applicants that the model has never seen; the bank's own file, outside the ledger."""
    with (folder / "applicants.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def build(walk: Walk) -> None:
    stage = walk.stage
    stage.station(
        "Build, sign",
        "Each engine is built in a fresh process; every message of the builder is kept.\n"
        "Then every file is signed.",
    )
    for name in MODELS:
        built = stage.ask("build", str(walk.site / "recipes" / name / "recipe.yaml"))
        signed = stage.ask("sign", built["folder"])
        walk.archives[name] = Path(signed["archive"])
        walk.facts[name] = signed
        stage.good(
            f"{walk.archives[name].name}: {built['fused_layers']} fused, engine {short(built['engine'])}"
        )
        shutil.rmtree(built["folder"])  # what travels and is loaded is the archive


def qualify(walk: Walk) -> None:
    stage = walk.stage
    stage.station(
        "Qualify, approve, verify",
        "Measured on this machine: accuracy against the source for every group of people, and whether\n"
        "neighbours, slots, buckets or processes change a single bit.",
    )
    for name in MODELS:
        archive = str(walk.archives[name])
        measured = stage.ask("qualify", archive)
        stage.need(measured["passed"], f"qualify {name}: expected it to pass, got {measured}")
        report = measured["qualification"]
        label, flips = report["variance"]["label"], report["variance"]["flips_between_buckets"]
        stage.good(f"{name}: {label}; {flips} decisions flip between buckets")
        show_slices(walk, report["accuracy"])
        stage.ask("approve", archive, "--role", "ml-engineer", "--reason", "first release of the demo")
    stage.tell("verify", str(walk.archives["credit"]))
    stage.prove("the package is whole, signed, measured and approved", "pellucid verify", "packages/")


def show_slices(walk: Walk, accuracy: dict[str, Any]) -> None:
    """What compiling changed, group by group, with the bound that so few samples allow."""
    columns = ("slice", "value", "people or images", "right", "flipped", "at most (95 %)")
    rows = [
        (s["slice"], s["value"], s["samples"], f"{float(s['top1']):.1%}", s["flips"],
         f"{float(s['flips_upper']):.1%}")
        for s in accuracy["slices"]
    ]  # fmt: skip
    walk.stage.table(columns, rows)


def short(digest: str) -> str:
    return digest[:19]
