"""Evidence bundles: one call with everything behind it, or a whole period.

The bundle holds the values of its own case and nobody else's: neighbours of a batch stay commitments.
Source: spec/evidence-bundle.md.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final

from pellucid.core import canonical
from pellucid.core.bundle import format_consistency, format_proof, range_hashes, seal
from pellucid.core.checkpoint import Checkpoint, verify_checkpoint
from pellucid.core.digest import parse_digest, sha256
from pellucid.core.entry import Opening, decode_outputs
from pellucid.core.package import is_attestation
from pellucid.core.tensor import Tensor
from pellucid.errors import NotFoundError, RollbackError
from pellucid.evidence.chain import Chain
from pellucid.evidence.report_html import render_case_page, render_period_page
from pellucid.ports import EntryReader, Signer

ENTRIES_MAX: Final = 1_000_000  # limit: verifiers hold a period in memory
_EVIDENCE: Final = frozenset(
    [
        "manifest.json", "model.sig", "metadata.json", "meaning.json", "recipe.yaml", "facts.json",
        "environment.json", "provenance.json", "sbom.cdx.json", "label.html", "label.md",
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Material:
    """What belongs to a case beside the ledger; ``app`` finds it.

    Attributes:
        package: Files of the package that answered, verified by the caller.
        policies: Policy texts by digest.
        reports: Signed replay reports by digest.
        inputs: Original rows of the call by row number, to be shown to match; empty by default.
        answers: The regulator's four (``answer.answer_four``), for the page.
    """

    package: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    policies: Mapping[str, bytes] = field(default_factory=dict)
    reports: Mapping[str, bytes] = field(default_factory=dict)
    inputs: Mapping[int, Sequence[Tensor]] = field(default_factory=dict, repr=False)
    answers: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class LogView:
    """One published state of the log, and the state its reader saw before.

    Attributes:
        raw: The signed checkpoint, verbatim.
        checkpoint: The same, verified.
        seen: Checkpoint that the recipient saw, or ``None``.
    """

    raw: bytes
    checkpoint: Checkpoint
    seen: Checkpoint | None = None


def view_log(reader: EntryReader, vkey: str, seen: bytes | None = None) -> LogView:
    """The log as it is published now.

    Raises:
        SignatureError: A checkpoint that this log did not sign.
        RollbackError: The recipient saw a longer log than this one.
    """
    raw = reader.checkpoint()
    now = verify_checkpoint(raw, vkey)
    before = verify_checkpoint(seen, vkey) if seen is not None else None
    if before is not None and before.size > now.size:
        raise RollbackError(
            f"checkpoint: expected at least the size seen, {before.size:,}, got {now.size:,}",
            hint="this ledger is older than what was shown before: restore the right one",
        )
    return LogView(raw, now, before)


def export_case(
    reader: EntryReader, view: LogView, chain: Chain, material: Material, *, created: str, signer: Signer
) -> bytes:
    """Evidence bundle of one call.

    Raises:
        NotFoundError: An entry of the chain is not yet in the published log.
        FormatError, LimitError: A member that no bundle may hold.
    """
    _require_published(chain, view)
    members = _log_members(reader, view)
    for leaf in chain.leaves:
        members |= _entry_members(reader, view, leaf.index, leaf.entry.raw)
    name = f"{chain.call.index:012d}.json"
    if chain.openings:
        members[f"openings/{name}"] = _openings_member(chain)
    if material.inputs:
        members[f"inputs/{name}"] = _inputs_member(material.inputs)
    members |= _package_members(chain, material)
    members |= {f"policies/{parse_digest(d).hex()}": text for d, text in material.policies.items()}
    for digest, report in material.reports.items():
        members[f"replays/{parse_digest(digest).hex()}.sigstore.json"] = report
    members["case.json"] = canonical.encode({"call": chain.call.entry.id, "kind": "case"})
    members["index.html"] = render_case_page(chain, material.answers, members, created=created)
    return seal(members, created=created, signer=signer)


def export_period(
    reader: EntryReader, view: LogView, start: int, stop: int, *, created: str, signer: Signer
) -> bytes:
    """Evidence bundle of the entries ``start`` to ``stop - 1``, none left out.

    Raises:
        NotFoundError: Not a range of the published log.
    """
    size = view.checkpoint.size
    if not 0 <= start < stop <= size or stop - start > ENTRIES_MAX:
        raise NotFoundError(
            f"period: expected 1 to {ENTRIES_MAX:,} entries below {size:,}, got {start:,} to {stop:,}"
        )
    entries = list(reader.entries(start, stop))
    first, last = reader.inclusion_proof(start, size), reader.inclusion_proof(stop - 1, size)
    hashes = [item.hex() for item in range_hashes(start, stop, size, first, last)]
    members = _log_members(reader, view)
    members["log/range.json"] = canonical.encode({"hashes": hashes, "start": start, "stop": stop})
    members["log/range.jsonl"] = b"".join(entry + b"\n" for entry in entries)
    members["case.json"] = canonical.encode({"kind": "period", "start": start, "stop": stop})
    members["index.html"] = render_period_page(entries, start, members, created=created)
    return seal(members, created=created, signer=signer)


def _require_published(chain: Chain, view: LogView) -> None:
    last = chain.leaves[-1].index
    if last >= view.checkpoint.size:
        raise NotFoundError(
            f"entry {last:,}: expected it below the published size {view.checkpoint.size:,}",
            hint="wait for the next checkpoint, or run: pellucid ledger integrate",
        )


def _log_members(reader: EntryReader, view: LogView) -> dict[str, bytes]:
    members = {"log/checkpoint": view.raw, "verify.py": verifier()}
    if view.seen is not None and 0 < view.seen.size < view.checkpoint.size:
        old, new = view.seen.size, view.checkpoint.size
        members["log/consistency.json"] = format_consistency(old, new, reader.consistency_proof(old, new))
    return members


def verifier() -> bytes:
    """The single-file verifier that travels in every bundle."""
    return files("pellucid.evidence").joinpath("verify.py").read_bytes()


def _entry_members(reader: EntryReader, view: LogView, index: int, raw: bytes) -> dict[str, bytes]:
    proof = reader.inclusion_proof(index, view.checkpoint.size)
    return {
        f"entries/{index:012d}.json": raw,
        f"entries/{index:012d}.tlog-proof": format_proof(index, proof, view.raw),
    }


def _openings_member(chain: Chain) -> bytes:
    shown = [_show_opening(opening) for opening in chain.openings if opening.kind != "rows"]
    document: dict[str, Any] = {"entry": chain.call.entry.id, "openings": shown}
    for opening in chain.openings:
        if opening.kind == "rows" and opening.value is not None:
            document["rows"] = canonical.decode(opening.value)
    return canonical.encode(document)


def _show_opening(opening: Opening) -> dict[str, Any]:
    shown: dict[str, Any] = {"kind": opening.kind, "row": opening.row, "key": opening.key.hex()}
    if opening.kind == "output":
        shown |= {"label": opening.label, "confidence": opening.confidence}
        shown["digest"] = (opening.digest or b"").hex()
        if opening.value is not None:
            shown["outputs"] = [_show_tensor(tensor) for tensor in decode_outputs(opening.value)]
    elif opening.kind != "input":
        shown["value"] = base64.b64encode(opening.value or b"").decode()
    return shown


def _show_tensor(tensor: Tensor) -> dict[str, Any]:
    data = base64.b64encode(bytes(tensor.data)).decode()
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), "data": data}


def _inputs_member(inputs: Mapping[int, Sequence[Tensor]]) -> bytes:
    rows = [
        {"row": row, "tensors": [_show_tensor(tensor) for tensor in tensors]}
        for row, tensors in sorted(inputs.items())
    ]
    return canonical.encode({"rows": rows})


def _package_members(chain: Chain, material: Material) -> dict[str, bytes]:
    package = chain.call.entry.data.get("package")
    if package is None:
        return {}
    prefix = f"packages/{parse_digest(package).hex()}/"
    return {
        prefix + path: data
        for path, data in material.package.items()
        if path in _EVIDENCE or is_attestation(path)
    }


def digest_of(bundle: bytes) -> str:
    """Digest that the export's entry names."""
    return sha256(bundle)
