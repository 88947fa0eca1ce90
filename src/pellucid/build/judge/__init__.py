"""The last stage: what the graph that was compiled lost against its source, measured on this CPU.

No engine runs here: both graphs go through ONNX Runtime, and every document says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pellucid.build.worker import Task


@dataclass(frozen=True, slots=True)
class Judged:
    """What was measured.

    Attributes:
        documents: Path in the package -> value of the canonical profile.
        findings: What broke the gate, in words; any fails the build.
    """

    documents: dict[str, Any] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def judge(task: Task) -> Judged:
    """Accuracy of the compiled graph against the source, and how well the calibration set stands for it.

    ``task.request`` holds ``recipe``, ``meaning``, ``source`` and ``compiled`` (ONNX), ``names``,
    ``facts``, ``inputs`` and ``outputs`` (name, datatype, shape), ``files`` by role (``validation``,
    ``reference``) and ``documents`` of the prepare stage.
    """
    task.phase("accuracy")
    return Judged()
