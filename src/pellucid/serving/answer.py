"""The answer to a call, whatever door it leaves by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.serving.shared_memory import Place


@dataclass(slots=True)
class Answer:
    """The reply to a call.

    Attributes:
        body: Whole body.
        json_size: Bytes of JSON at its head when binary tensors follow, else ``None``.
        call: Call key.
        trace: Trace id under which the call is found.
        elsewhere: Outputs that go into shared memory once the call is recorded.
    """

    body: bytes
    json_size: int | None
    call: str
    trace: str
    elsewhere: Sequence[tuple[Place, bytes]] = ()

    def deliver(self) -> None:
        """Put outputs where they were wanted; raises ``TensorError`` where that is not possible any more."""
        for place, data in self.elsewhere:
            place.region.write(place.offset, data)
