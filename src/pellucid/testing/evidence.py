"""A whole toy case in memory: keys, a signed package, a log with calls in it, and what opens them.

Everything is made with the same core that the product uses; only the engine is a toy: it multiplies.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from pellucid.core import canonical
from pellucid.core.checkpoint import Checkpoint, sign_checkpoint
from pellucid.core.decision import decide
from pellucid.core.digest import sha256
from pellucid.core.dsse import sign_bundle
from pellucid.core.entry import Formed, Opening, Writer, encode_outputs
from pellucid.core.expand import expand
from pellucid.core.manifest import folder_name, make_manifest
from pellucid.core.merkle.hashing import hash_leaf, root_of
from pellucid.core.merkle.tile import TILE_WIDTH, encode_bundle, entries_path, grow_tiles
from pellucid.core.model_signing import sign_package
from pellucid.core.note import format_vkey
from pellucid.core.package import PackageFiles
from pellucid.core.record import Batch, Call, Context, Event, Record, Row
from pellucid.core.signature import raw_ed25519
from pellucid.core.statement import PAYLOAD_TYPE, QUALIFICATION, make_statement
from pellucid.core.tensor import Tensor, row_digest, unpack_elements
from pellucid.core.trust import TrustedPackage, TrustRoot, verify_package
from pellucid.errors import BuildError, NotFoundError
from pellucid.evidence.answer import answer_four
from pellucid.evidence.chain import gather
from pellucid.evidence.export import Material, export_case, view_log
from pellucid.keys.file import FileKey
from pellucid.ledger.reader import LedgerReader
from pellucid.ports import IsolatedRun
from pellucid.replay.replay import Past, ReplayResult, replay_call
from pellucid.replay.report import make_predicate, sign_report
from pellucid.stores.memory import MemoryStore

ORIGIN: Final = "toy/pellucid"
SOURCE: Final = "toy/1/0"
CREATED: Final = "2026-11-30T17:00:00.000000000Z"
START_NS: Final = 1_796_000_000_000_000_000
ROLES: Final = ("exporter", "builder", "qualifier", "approver", "replayer")
POLICY: Final = b"name: toy\n"
ENVIRONMENT: Final[dict[str, Any]] = {
    "backend": "onnxruntime",
    "onnxruntime": "1.27.0",
    "device": {"kind": "cpu", "name": "toy processor", "isa": ["avx2"]},
}
MEANING: Final[dict[str, Any]] = {
    "features": [{"name": "income"}, {"name": "debt"}],
    "decision": {
        "kind": "threshold", "output": "score", "column": 0, "threshold": "0.5",
        "labels": ["refused", "granted"],
    },
}  # fmt: skip
RECIPE: Final = b"""name: credit
version: "1.0.0"
backend: onnxruntime
precision: fp32
tf32: false
serve_level: portable
threads: 1
buckets: [1, 4, 8]
"""


class ToyIsolated:
    """An engine in 'a process of its own' that multiplies; it can be told to depend on how it runs.

    Attributes:
        wobble: Names of factors (``bucket``, ``threads``, ``slot``, ``neighbours``) that change bits.
        shift: Added to every score.
        environment: What it reports of itself.
        runs: How often it ran.
    """

    def __init__(self, wobble: Sequence[str] = (), shift: float = 0.0) -> None:
        self.wobble, self.shift, self.runs = tuple(wobble), shift, 0
        self.environment: dict[str, Any] = dict(ENVIRONMENT)

    def infer(
        self, backend: str, engine: bytes, recipe: Mapping[str, Any], batches: Sequence[Sequence[Tensor]]
    ) -> IsolatedRun:
        if backend != "onnxruntime":
            raise BuildError(f"backend: expected onnxruntime, got {backend}")
        self.runs += 1
        outputs = [[score(batch[0], engine, self._step(recipe, batch[0]))] for batch in batches]
        return IsolatedRun(outputs, dict(self.environment), {"threads": recipe["threads"]})

    def _step(self, recipe: Mapping[str, Any], batch: Tensor) -> float:
        step = self.shift
        if "bucket" in self.wobble:
            step += batch.shape[0] * 2.0**-20
        if "threads" in self.wobble:
            step += recipe["threads"] * 2.0**-20
        if "neighbours" in self.wobble:
            step += sum(v != 0 for v in unpack_elements(batch)) * 2.0**-20
        return step


def score(batch: Tensor, engine: bytes, step: float = 0.0) -> Tensor:
    """``score`` FP32 [N,1] of ``features`` FP32 [N,2]."""
    values = unpack_elements(batch)
    weight = engine[0] / 256
    rows = [weight * values[i] - values[i + 1] + step for i in range(0, len(values), 2)]
    return Tensor("score", "FP32", (len(rows), 1), struct.pack(f"<{len(rows)}f", *rows))


def features(*values: float) -> tuple[Tensor, ...]:
    """One input row."""
    return (Tensor("features", "FP32", (1, len(values)), struct.pack(f"<{len(values)}f", *values)),)


def make_key(algorithm: str = "ecdsa-p256") -> FileKey:
    """A key in memory."""
    if algorithm == "ed25519":
        return FileKey(ed25519.Ed25519PrivateKey.generate())
    return FileKey(ec.generate_private_key(ec.SECP256R1()))


class ToyVault:
    """Openings by key."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[Opening, ...]] = {}
        self.erased_by: dict[str, str] = {}

    def openings(self, key: str) -> tuple[Opening, ...]:
        return self.held.get(key, ())

    def subject_of(self, _key: str) -> str | None:
        return None


class ToyLog:
    """A ledger in memory; ``publish`` signs what has been appended so far."""

    def __init__(self, key: FileKey) -> None:
        self.key, self.vault = key, ToyVault()
        self.entries: list[bytes] = []
        self.contexts: dict[int, Context] = {}
        self.checkpoint = b""
        self._events = 0

    @property
    def vkey(self) -> str:
        return format_vkey(ORIGIN, 1, raw_ed25519(self.key.public_pem()))

    def append(self, record: Record, source: str = SOURCE) -> list[Formed]:
        """Form a record's entries, as the sequencer does."""
        if isinstance(record, Context):
            self.contexts[record.id] = record
        formed = expand(
            record, writer=Writer(source), contexts=self.contexts, subject_keys=lambda _s: b"k" * 32
        )
        for each in formed:
            self.entries.append(each.entry)
            self.vault.held[each.key] = each.openings
        return formed

    def event(self, kind: str, data: dict[str, Any], personal: Mapping[str, str] | None = None) -> str:
        """Append an event; gives its key."""
        self._events += 1
        at = START_NS + len(self.entries) * 1_000_000
        record = Event(self._events, kind, at, data, b"s" * 32, dict(personal or {}))
        return self.append(record, "toy/door-00")[0].key

    def publish(self) -> LedgerReader:
        """Sign the tree, lay out its tiles, and give a reader of them."""
        hashes = [hash_leaf(entry) for entry in self.entries]
        self.checkpoint = sign_checkpoint(Checkpoint(ORIGIN, len(hashes), root_of(hashes)), self.key)
        objects = grow_tiles(0, hashes, _nothing)
        for start in range(0, len(hashes), TILE_WIDTH):
            part = self.entries[start : start + TILE_WIDTH]
            objects[entries_path(start // TILE_WIDTH, len(part))] = encode_bundle(part)
        store = MemoryStore({**objects, "checkpoint": self.checkpoint})
        return LedgerReader(store, None, cast(Any, self.vault), self.vkey)


def _nothing(_level: int, _index: int) -> bytes:
    raise NotFoundError("a tree that starts empty has no old hashes")


@dataclass(slots=True)
class ToyCase:
    """Keys, a package, a log with two calls that shared a batch, and a third that ran alone."""

    keys: dict[str, FileKey]
    files: PackageFiles
    package: TrustedPackage
    log: ToyLog
    call: str
    rows: dict[int, tuple[Tensor, ...]]
    alone: str
    policies: dict[str, bytes] = field(default_factory=dict)
    reports: dict[str, bytes] = field(default_factory=dict)

    @property
    def trust(self) -> TrustRoot:
        return trust_of(self.keys, self.log.vkey)

    def write_trust(self, folder: Path, seen: bytes | None = None) -> Path:
        """The trust folder of someone who was given the right keys."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log.vkey").write_text(self.log.vkey + "\n")
        for role in ROLES:
            (folder / f"{role}.pem").write_bytes(self.keys[role].public_pem())
        if seen is not None:
            (folder / "seen.checkpoint").write_bytes(seen)
        return folder


def trust_of(keys: Mapping[str, FileKey], vkey: str = "") -> TrustRoot:
    """Trust in exactly these keys."""
    return TrustRoot(vkey, {role: (key.public_pem(),) for role, key in keys.items()})


def make_case(*, rows_alone: int = 1) -> ToyCase:
    """A toy case; ``rows_alone`` is the number of rows of the call that ran alone."""
    keys = {role: make_key() for role in ROLES}
    files = make_package(keys)
    package = verify_package(files, trust_of(keys))
    log = ToyLog(make_key("ed25519"))
    log.event("package", {"package": package.digest, "name": package.name, "version": package.version})
    facts = {
        "model": package.name, "version": package.version, "package": package.digest,
        "engine": package.engine_digest, "policy": sha256(POLICY),
        "environment": sha256(canonical.encode(ENVIRONMENT)), "precision": "fp32", "threads": 1,
        "device": "toy processor", "label_variance": "invariant",
    }  # fmt: skip
    load = {key: facts[key] for key in ("model", "version", "package", "engine", "policy", "environment")}
    log.event("load", load | {"environment_facts": ENVIRONMENT, "verdict": "allowed", "findings": []})
    log.append(Context(1, facts))
    rows = {0: features(1.0, 0.25), 1: features(0.25, 1.0)}
    first = make_call(1, package, rows, slot=0)
    second = make_call(2, package, {0: features(2.0, 3.0)}, slot=2)
    log.append(Batch(1, 1, 4, first.closed_ns, 900, (first, second)))
    lone = {n: features(1.0 + n, 0.5) for n in range(rows_alone)}
    log.append(make_call(3, package, lone, slot=0, bucket=max(1, rows_alone)))
    policies = {sha256(POLICY): POLICY}
    return ToyCase(keys, files, package, log, f"{SOURCE}/1", rows, f"{SOURCE}/3", policies)


def export_toy(
    case: ToyCase,
    call: str | None = None,
    *,
    seen: bytes | None = None,
    reports: Mapping[str, bytes] | None = None,
    inputs: Mapping[int, Sequence[Tensor]] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> bytes:
    """Evidence bundle of a toy call; ``files`` replaces the package's."""
    reader = case.log.publish()
    chain = gather(reader, call or case.call, case.log.vault.erased_by.get(call or case.call))
    material = Material(
        package=case.files.files if files is None else files,
        policies=case.policies,
        reports=dict(reports or {}),
        inputs=dict(inputs or {}),
        answers=answer_four(chain, case.package),
    )
    view = view_log(reader, case.log.vkey, seen)
    return export_case(reader, view, chain, material, created=CREATED, signer=case.keys["exporter"])


def replay_toy(case: ToyCase, isolated: ToyIsolated, *, rows: Sequence[int] | None = None) -> ReplayResult:
    """Replay the toy call, all rows or some."""
    chain = gather(case.log.publish(), case.call, case.log.vault.erased_by.get(case.call))
    given = case.rows if rows is None else {n: case.rows[n] for n in rows}
    past = Past(chain.call.entry, chain.openings, tuple(e.entry for e in chain.erasures), ENVIRONMENT)
    return replay_call(past, given, case.package, isolated)


def record_replay(case: ToyCase, result: ReplayResult) -> tuple[str, bytes]:
    """Sign a replay's report and record it; gives its digest and bytes."""
    report = sign_report(make_predicate(result, time=CREATED), case.keys["replayer"])
    data = {"call": result.call, "verdict": result.verdict, "report": sha256(report)}
    case.log.event("replay", data)
    return sha256(report), report


def make_call(
    n: int, package: TrustedPackage, rows: Mapping[int, Sequence[Tensor]], *, slot: int, bucket: int = 4
) -> Call:
    """A call that was answered."""
    made = []
    for number in sorted(rows):
        output = [score(rows[number][0], package.engine)]
        label, confidence = decide(package.meaning["decision"], output)
        digest = row_digest(output)
        made.append(Row(row_digest(rows[number]), digest, label, confidence, encode_outputs(output)))
    at = START_NS + n * 10_000_000_000
    seed = hashlib.sha256(b"seed %d" % n).digest()
    personal = {"caller": f"client-{n}", "trace_id": f"{n:032x}"}
    return Call(
        n, 1, "answered", None, at, at + 4_000_000, (1000, 2000, 900, 4_000_000), slot, bucket, tuple(made),
        ((len(rows), 2),), (8 * len(rows), 4 * len(rows)), seed, personal,
    )  # fmt: skip


def make_package(
    keys: Mapping[str, FileKey], engine: bytes = b"\xc0 an engine that multiplies"
) -> PackageFiles:
    """A signed package with a qualification."""
    folder = folder_name("credit", "1.0.0", "ort1.27", "cpu")
    metadata = {
        "tensorrt_image": None,
        "calibration_dataset_hash": None,
        "null_reasons": [{"field": "tensorrt_image", "reason": "built outside a container"}],
    }
    files = {
        "recipe.yaml": RECIPE,
        "meaning.json": canonical.encode(MEANING),
        "metadata.json": canonical.encode(metadata),
        "environment.json": canonical.encode(ENVIRONMENT),
        "engine/model.onnx": engine,
    }
    files["manifest.json"] = make_manifest(
        folder=folder, name="credit", version="1.0.0", previous=None,
        created="2026-11-20T08:00:00.000000000Z", backend="onnxruntime", target="cpu", files=files,
    )  # fmt: skip
    files["model.sig"] = sign_package(files, folder, keys["builder"])
    root = verify_package(PackageFiles(folder, files), trust_of(keys)).digest
    predicate = {
        "environment": ENVIRONMENT,
        "accuracy": {"passed": True, "samples": 400},
        "variance": {"label": "invariant", "bound": {"absolute": "0.00001", "ulp": 0}},
    }
    statement = make_statement([(folder, root)], QUALIFICATION, predicate)
    files["attestations/qualification.sigstore.json"] = sign_bundle(
        PAYLOAD_TYPE, statement, keys["qualifier"]
    )
    return PackageFiles(folder, files)
