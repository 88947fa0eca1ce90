"""A small ledger in a folder, for tests: its parts, its key, and records to put in."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pellucid.core.note import format_vkey
from pellucid.core.record import Batch, Call, Row
from pellucid.indexes.sqlite import SqliteIndex
from pellucid.ledger.fsck import FsckReport, fsck
from pellucid.ledger.reader import LedgerReader
from pellucid.ledger.recorder import JournalRecorder, RecorderLimits
from pellucid.ledger.sequencer import Sequencer
from pellucid.ledger.state import State
from pellucid.ledger.vault import Vault
from pellucid.ports import Clock, Follower
from pellucid.stores.file import FileStore
from pellucid.testing.clock import FakeClock

FACTS = {"model": "credit", "version": "1", "package": "sha256:aa", "engine": "sha256:bb"}


class MemoryKey:
    """An Ed25519 key that lives as long as the test (``ports.Signer``)."""

    algorithm = "ed25519"

    def __init__(self, seed: bytes = b"k" * 32) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)

    def public_pem(self) -> bytes:
        return self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def vkey(self, name: str) -> str:
        """Verifier key text."""
        raw = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return format_vkey(name, 1, raw)


def make_call(n: int, *, context: int = 1, rows: int = 1, **changes: Any) -> Call:
    """An answered call with random row digests and a random seed."""
    made = tuple(Row(secrets.token_bytes(32), secrets.token_bytes(32), "good", "0.75") for _ in range(rows))
    values: dict[str, Any] = {
        "n": n, "context": context, "outcome": "answered", "error": None, "accepted_ns": 10**18 + n,
        "closed_ns": 10**18 + n + 1000, "stages": (1, 2, 3, 6), "slot": 0, "bucket": 8, "rows": made,
        "shapes": ((rows, 20),), "nbytes": (80, 8), "seed": secrets.token_bytes(32),
        "personal": {"address": "192.0.2.1", "caller": "anna"},
    }  # fmt: skip
    return Call(**{**values, **changes})


def make_batch(n: int, numbers: list[int], *, context: int = 1) -> Batch:
    """A batch of calls with these numbers."""
    calls = tuple(make_call(number, context=context, slot=slot) for slot, number in enumerate(numbers))
    return Batch(n, context, 8, 10**18, 3, calls)


@dataclass
class LedgerFolder:
    """A whole ledger below ``root``; nothing runs unless asked to.

    Attributes:
        followers: Extra followers by name.
        durable: False where no power loss is played: SQLite then waits for no disk.
    """

    root: Path
    node: str = "node1"
    origin: str = "node1/test"
    clock: Clock = field(default_factory=FakeClock)
    key: MemoryKey = field(default_factory=MemoryKey)
    followers: dict[str, Follower] = field(default_factory=dict)
    durable: bool = True
    _epoch: int = 0

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.store = FileStore(self.root)
        self.state = State(self.root / "state.db", self.origin)
        self.vault = Vault(self.root / "vault.db")
        self.index = SqliteIndex(self.root / "index.db")
        for part in () if self.durable else (self.state, self.vault, self.index):
            part._db.execute("PRAGMA synchronous=OFF")
        self.reader = LedgerReader(self.store, self.index, self.vault, self.vkey)

    @property
    def vkey(self) -> str:
        return self.key.vkey(self.origin)

    def recorder(self, **changes: Any) -> JournalRecorder:
        """A recorder of the next epoch, with its opening entry; no thread unless asked for."""
        self._epoch += 1
        settings: dict[str, Any] = {"clock": self.clock, "start_flusher": False, "limits": RecorderLimits()}
        recorder = JournalRecorder(self.root, f"{self.node}/{self._epoch}/0", **{**settings, **changes})
        recorder.event("epoch", {"epoch": self._epoch, "phase": "open", "worker": 0, "workers": 1})
        return recorder

    def sequencer(self, **changes: Any) -> Sequencer:
        """A sequencer over these parts, or over others given by name."""
        parts: dict[str, Any] = {
            "folder": self.root, "node": self.node, "origin": self.origin, "store": self.store,
            "state": self.state, "vault": self.vault, "signer": self.key, "clock": self.clock,
            "followers": {"index": self.index, **self.followers},
        }  # fmt: skip
        return Sequencer(**{**parts, **changes})

    def integrate(self, **changes: Any) -> int:
        """Integrate all there is; returns the number of new entries."""
        sequencer = self.sequencer(**changes)
        try:
            return sequencer.drain()
        finally:
            sequencer.close()

    def fsck(self) -> FsckReport:
        return fsck(self.store, self.state, self.vkey)

    def entries(self) -> list[bytes]:
        return list(self.reader.entries(0, self.reader.size()))

    def close(self) -> None:
        self.state.close()
        self.vault.close()
        self.index.close()
