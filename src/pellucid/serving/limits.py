"""Limits of the door: everything from outside is bounded before anything is allocated for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MESSAGE_MAX: Final = 512  # limit: characters of a refusal's message that the ledger keeps
ID_MAX: Final = 256  # limit: characters of a client's request id, subject or trace id
KEPT_MAX: Final = 8 * 2**20  # limit: bytes of outputs one execution may keep; its record is one journal frame
PARAMETER_MAX: Final = 4_096  # limit: characters of one parameter's text
PARAMETERS_MAX: Final = 64  # limit: parameters of one object
TENSORS_MAX: Final = 256  # limit: inputs or outputs named in one request


@dataclass(frozen=True, slots=True)
class BaselineLimits:
    """How a baseline is made where none was frozen before.

    Attributes:
        skip: Executions of a bucket that still warm up.
        executions: How many are taken after these; 0: no baseline is made.
    """

    skip: int = 200
    executions: int = 1_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What one site allows; from ``serving`` and ``ledger`` of its configuration.

    Attributes:
        body_max_bytes: Largest request body, also after decompression.
        queue_max: Calls that may wait for one model.
        keep_outputs_max_bytes: Outputs of a row up to this size are kept in the vault.
        batch_delay_us: How long an idle model waits for company; 0 sends what is there now.
        inline_max_ns: Executions measured below this run on the event loop's own thread.
        execution_ns: What an execution takes beside the engine; an estimate, for what pays to share one.
        slow_bodies_max: Bodies that come in pieces and are held at once; each has a call number.
        refusals_burst: Refusals that get an entry of their own at once.
        refusals_per_s: And how many more each second; beyond they are counted.
        count_interval_s: How often such a count becomes an entry.
        baseline: How latency baselines are made.
    """

    body_max_bytes: int = 16 * 2**20
    queue_max: int = 1_024
    keep_outputs_max_bytes: int = 65_536
    batch_delay_us: int = 0
    inline_max_ns: int = 200_000  # measured: a thread hop costs 60 to 100 us on a busy loop
    execution_ns: int = 150_000
    slow_bodies_max: int = 1_024
    refusals_burst: int = 1_000
    refusals_per_s: float = 100.0
    count_interval_s: float = 10.0
    baseline: BaselineLimits = BaselineLimits()
