"""What the walk knows so far, and the few things that several stations need."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import preprocess

from walk import crowd
from walk.server import Server
from walk.stage import BrokenError, Stage

HERE = Path(__file__).resolve().parents[1]
MODELS = ("credit", "digits")
THRESHOLD = 0.40  # as in credit/train.py: at or above, a loan is refused
MARK = ".pellucid-demo"  # only a folder that holds this file is ever removed
FIRST_DAY = 100  # calls before the copy that somebody keeps
Applicant = dict[str, str]


@dataclass
class Walk:
    """What the walk knows so far."""

    stage: Stage
    server: Server
    site: Path
    archives: dict[str, Path] = field(default_factory=dict)
    applicants: list[Applicant] = field(default_factory=list)
    replies: list[crowd.Reply] = field(default_factory=list)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    case: crowd.Reply | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ledger(self) -> Path:
        return self.site / "ledger"

    @property
    def auditor(self) -> Path:
        return self.site / "auditor"


def credit_ask(number: int, applicant: Applicant) -> crowd.Ask:
    """The call for one application; its trace id comes from the bank's own front."""
    row = preprocess.encode(applicant)
    trace = hashlib.sha256(f"application {number}".encode()).hexdigest()[:32]
    subject = f"applicant-{number:04d}"
    return crowd.Ask("credit", "features", "probabilities", (1, len(row) // 4), row, trace, subject)


def original(walk: Walk, reply: crowd.Reply) -> Path:
    """The applicant's row, prepared again from the application; the bank's file, not the ledger's."""
    number = int(reply.ask.subject.rpartition("-")[2])
    row = preprocess.features(walk.applicants[number])
    stage = walk.stage
    stage.need(
        preprocess.encode(walk.applicants[number]) == reply.ask.row, "preprocessing: expected the same row"
    )
    file = walk.site / "original.json"
    tensor = {"name": "features", "datatype": "FP32", "shape": [1, len(row)], "data": row}
    file.write_text(json.dumps({"inputs": [tensor]}))
    return file


def case_of(walk: Walk) -> crowd.Reply:
    if walk.case is None:
        raise BrokenError("case: expected a refused applicant, got none")
    return walk.case
