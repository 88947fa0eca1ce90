"""Ports: what a room may ask for. ``app`` plugs in who answers.

Each docstring is the implementer's guide: consistency, durability, concurrency, and what absent
means. Everything raises only from ``pellucid.errors``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:  # every process of a build imports this module, and runs none of it
    from pathlib import Path

    from pellucid.core.digest import Data
    from pellucid.core.entry import Formed, Opening
    from pellucid.core.package import PackageFiles
    from pellucid.core.record import Batch, Call
    from pellucid.core.tensor import Tensor, TensorSpec


class Clock(Protocol):
    """Time. Tests give a clock of their own; nothing else in the house asks the system."""

    def now_ns(self) -> int:
        """Wall clock, nanoseconds since 1970."""
        ...

    def monotonic_ns(self) -> int:
        """Never goes back; only differences mean something."""
        ...

    def wait(self, seconds: float) -> None:
        """Let that much time pass (a fake clock moves on at once)."""
        ...


class CallTracer(Protocol):
    """Tells of calls as spans of a trace, on the event loop's thread; never raises."""

    def accepted(self, n: int, traceparent: bytes) -> None:
        """A call was accepted below a valid W3C context."""
        ...

    def closed(self, record: Call, model: str, version: str) -> None:
        """A call's record is appended; no model: it named none that is served."""
        ...

    def take(self, n: int) -> bytes:
        """W3C context of the call's own span, once; ``b""`` when there is none."""
        ...


class LoadProbe(Protocol):
    """How busy this machine is; cheap enough for ten times a second, on any one thread."""

    def read(self) -> dict[str, Any]:
        """Since the reading before: shares in thousandths, bytes as integers, ``None`` where nothing
        can be read, with a ``*_reason`` beside it; canonical profile."""
        ...


class Signer(Protocol):
    """A private key that stays where it is.

    ``sign`` gives Ed25519 64 bytes, or ECDSA P-256 over SHA-256 as DER. Safe for several threads.
    """

    @property
    def algorithm(self) -> str:
        """``ed25519`` or ``ecdsa-p256``."""
        ...

    def public_pem(self) -> bytes:
        """SubjectPublicKeyInfo, PEM."""
        ...

    def sign(self, message: bytes) -> bytes: ...


class Store(Protocol):
    """Immutable objects by relative path, plus a few replaceable ones.

    ``create`` returns only when the bytes survive power loss; an existing object with the same
    bytes is fine, with other bytes raises ``LedgerHaltedError``. Absent is ``NotFoundError``.
    Paths are ``a/b/c`` of ``[A-Za-z0-9._-]``; an adapter refuses everything else.
    """

    def create(self, path: str, data: bytes) -> None: ...
    def create_many(self, objects: Mapping[str, bytes]) -> None:
        """``create`` each; one directory sync for all is enough."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Atomic and durable; readers see the old or the new bytes."""
        ...

    def get(self, path: str) -> bytes: ...
    def delete(self, path: str) -> None: ...
    def paths(self, prefix: str) -> Iterator[str]:
        """All paths below the prefix, sorted."""
        ...


# -- backends -------------------------------------------------------------------------------------


class LogLine(msgspec.Struct, frozen=True):
    """One message of a builder, as it came."""

    severity: str  # VERBOSE INFO WARNING ERROR FATAL
    time_ns: int
    message: str
    location: str = ""


BuildLog = Callable[[LogLine], None]


class Step(msgspec.Struct, frozen=True):
    """How far a builder is inside one of its own phases.

    Attributes:
        done: Steps that ended; of: how many the builder announced.
    """

    phase: str
    done: int
    of: int


BuildProgress = Callable[[Step], bool]  # ``False``: stop at the next chance, as ``BuildCancelledError``


def unwatched(_step: Step) -> bool:
    """Progress that nobody looks at."""
    return True


EngineMade = Callable[["Path", "tuple[TensorSpec, ...]"], "Path"]
"""Takes an engine's file and its inputs; gives where the file lies from now on."""


def unawaited(engine: Path, _inputs: tuple[TensorSpec, ...]) -> Path:
    """An engine that nobody waits for before its facts are known."""
    return engine


class Built(msgspec.Struct, frozen=True):
    """What a backend made of a model.

    Attributes:
        engine: The engine's bytes; a large one's stand in the file that ``made`` was told of.
        engine_name: File name below ``engine/``, for example ``model.onnx``.
        compiled: The ONNX graph the builder got.
        options: Every setting as read back, JSON of the canonical profile.
        facts: JSON of the canonical profile; keys as in spec/package.md, section 'facts.json'.
        inputs, outputs: Tensors of the engine; ``-1`` is variable.
        session: The engine opened as it is served, where reading the facts took that.
    """

    engine: Data
    engine_name: str
    compiled: bytes
    options: dict[str, Any]
    facts: dict[str, Any]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    session: Session | None = None


class PreflightFinding(msgspec.Struct, frozen=True):
    """Something to know about a graph before it is built.

    A backend with a method ``preflight(recipe, model, log) -> list[PreflightFinding]`` says what it
    would refuse, all at once and without building; it is called in a child process only.

    Attributes:
        severity: ``refused`` (a build will fail), ``risk`` (it may fail or answer otherwise), ``note``.
        rule: Stable word for machines.
        where: Node with its operator, tensor, file or key of the recipe.
        what: What was found.
        fix: What to change, or ``""``.
    """

    severity: str
    rule: str
    where: str
    what: str
    fix: str = ""


class Session(Protocol):
    """A running engine. ``infer`` is called by one thread at a time."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...
    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...
    def infer(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Outputs in the model's order; inputs in the model's order, already padded to a bucket."""
        ...

    def describe(self) -> dict[str, Any]:
        """Effective run-time settings, threads, device and library versions; canonical profile."""
        ...

    def close(self) -> None: ...


class LayerTime(msgspec.Struct, frozen=True):
    """How long one layer took, over some executions.

    Attributes:
        name, op: As the engine has them.
        runs: How often it ran.
        ns: Nanoseconds, all runs together.
    """

    name: str
    op: str
    runs: int
    ns: int


class ProfiledSession(Session, Protocol):
    """A session that also measures its layers; slower, with the same bits."""

    def layers(self) -> list[LayerTime]:
        """Times of all layers so far, the slowest first; asked once, and nothing is measured after."""
        ...


class ProfilingBackend(Protocol):
    """A backend that can measure the layers of an engine while it serves; not every one can."""

    def open_profiled(self, engine: bytes, recipe: Mapping[str, Any]) -> ProfiledSession: ...


class Backend(Protocol):
    """One family of engines. ``build`` runs only inside the build worker's own process.

    ``open`` takes verified bytes, never a path: what was verified is what is loaded. ``open_made`` is
    for a build's own sessions of the engine that it has just made.
    """

    name: str

    def load(self) -> None:
        """Import what only a build needs; done while the graph is still being made."""
        ...

    def build(
        self,
        recipe: Mapping[str, Any],
        model: bytes,
        log: BuildLog,
        progress: BuildProgress = unwatched,
        made: EngineMade = unawaited,
    ) -> Built:
        """``progress`` is told of steps where the builder has any, and may stop it. ``made`` is told of
        the file that holds the engine, as soon as there is one: what reads its facts goes on meanwhile."""
        ...

    def open(self, engine: bytes, recipe: Mapping[str, Any]) -> Session:
        """``recipe`` is the package's effective recipe (threads, serve level, ...)."""
        ...

    def open_made(self, engine: Path, recipe: Mapping[str, Any]) -> Session:
        """The same session of an engine's file, for a few answers: as quick to open as can be, whatever
        memory that costs while it lives."""
        ...

    def environment(self) -> dict[str, Any]:
        """Library versions as loaded, device name and capability, ISA; canonical profile."""
        ...


# -- ledger ---------------------------------------------------------------------------------------


class Recorder(Protocol):
    """The serving process's door to the ledger. Never waits for the sequencer.

    A number is reserved before anything can fail and closed exactly once. ``close_*`` returns
    after the append (page cache); ``after_durable`` calls back when all appended so far has the
    durability that the recording mode promises (at once in ``journaled``), from any thread.
    One thread appends at a time (the event loop's).
    """

    mode: str

    def reserve(self, accepted_ns: int) -> int:
        """Next call number. Raises ``LedgerFullError`` at the backlog's limit (retry later),
        ``TooManyError`` when too many calls are in flight, ``LedgerHaltedError`` after a disk error."""
        ...

    def call_key(self, n: int) -> str: ...
    def add_context(self, facts: dict[str, Any]) -> int: ...
    def drop_context(self, context: int) -> None:
        """No call that is not closed yet names it, and none ever will."""
        ...

    def close_call(self, call: Call) -> None: ...
    def close_batch(self, batch: Batch) -> None: ...
    def after_durable(self, callback: Callable[[], None]) -> None: ...
    def event(self, kind: str, data: dict[str, Any], personal: Mapping[str, str] | None = None) -> str:
        """Append an event (load, unload, ...); returns its key. Durable on return."""
        ...


class EventRecorder(Protocol):
    """How everything that is not a call becomes an entry; durable on return, gives the key.

    A ``PellucidError`` says that nothing was recorded; after an ``OSError`` it may have been: the disk
    took it, and did not confirm it.
    """

    def event(self, kind: str, data: dict[str, Any], personal: Mapping[str, str] | None = None) -> str: ...


class EntryReader(Protocol):
    """Reads the published ledger. Indices are 0-based; sizes are tree sizes."""

    @property
    def origin(self) -> str: ...
    def checkpoint(self) -> bytes:
        """Latest published signed checkpoint, verbatim. ``NotFoundError`` when there is none yet."""
        ...

    def size(self) -> int: ...
    def entry(self, index: int) -> bytes: ...
    def entries(self, start: int, stop: int) -> Iterator[bytes]: ...
    def inclusion_proof(self, index: int, size: int) -> list[bytes]: ...
    def consistency_proof(self, old: int, new: int) -> list[bytes]: ...
    def find(self, query: Query) -> list[Found]: ...
    def openings(self, key: str) -> tuple[Opening, ...]:
        """What the vault still holds for an entry; ``()`` when erased or lost.

        Keys derived from a subject come filled in, so that every opening opens its commitment.
        """
        ...


class Query(msgspec.Struct, frozen=True):
    """Search over the hot index; empty fields do not restrict."""

    key: str = ""
    trace: str = ""
    type: str = ""
    model: str = ""
    label: str = ""
    outcome: str = ""
    subject: str = ""
    package: str = ""
    since_ns: int = 0
    until_ns: int = 2**63 - 1
    limit: int = 100
    newest_first: bool = True


class Found(msgspec.Struct, frozen=True):
    """A row of the index."""

    index: int
    key: str
    type: str
    time_ns: int
    model: str = ""
    version: str = ""
    outcome: str = ""
    label: str = ""
    confidence: str = ""
    trace: str = ""


class Follower(Protocol):
    """Follows the ledger entry by entry: index, sinks. At least once, in order, idempotent by index."""

    def position(self) -> int:
        """Entries applied so far (the next index)."""
        ...

    def apply(self, start: int, formed: Sequence[Formed]) -> None:
        """Entries ``start``, ``start + 1``, ...; durable on return."""
        ...


class Index(Follower, Protocol):
    """A follower that can be searched; losing it loses nothing (``rebuild`` from the ledger)."""

    def find(self, query: Query) -> list[Found]: ...
    def forget(self, key: str) -> None:
        """Drop every personal value of an entry (erasure)."""
        ...

    def scrub(self) -> None:
        """After some ``forget``: leave nothing of it in any file. Raises while that is not possible."""
        ...

    def clear(self) -> None: ...
    def close(self) -> None: ...


class Sink(Follower, Protocol):
    """A follower that sends field selections elsewhere; a dead target never stops the ledger."""

    def forget(self, key: str) -> None:
        """Tell the target to drop every personal value of an entry (a tombstone)."""
        ...

    def close(self) -> None: ...


# -- packages -------------------------------------------------------------------------------------


class PackageOpener(Protocol):
    """Finds a package's files by package digest (OMS root), by ``name:version`` or by path."""

    def open(self, reference: str) -> PackageFiles: ...


class Isolated(Protocol):
    """Runs an engine in a process of its own, thrown away after (replay, qualification)."""

    def infer(
        self, backend: str, engine: bytes, recipe: Mapping[str, Any], batches: Sequence[Sequence[Tensor]]
    ) -> IsolatedRun: ...


class IsolatedRun(msgspec.Struct, frozen=True):
    outputs: list[list[Tensor]]
    environment: dict[str, Any]
    describe: dict[str, Any]
