"""The product's own check of an evidence bundle: the stranger's verifier, and a second opinion.

``verify.py`` runs as it stands; then what it believed is checked again with other code (``core`` on
``cryptography``): container, signatures, checkpoint, every inclusion proof, the package, the answers.
Two implementations that disagree are a defect, and said so.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Any

from pellucid.core import bundle as container
from pellucid.core import canonical
from pellucid.core.checkpoint import Checkpoint, verify_checkpoint
from pellucid.core.digest import verify_digest
from pellucid.core.dsse import verify_bundle
from pellucid.core.entry import Entry, is_opening, output_digest, parse_entry
from pellucid.core.merkle.hashing import hash_leaf
from pellucid.core.merkle.proof import verify_consistency, verify_inclusion
from pellucid.core.model_signing import verify_by_any
from pellucid.core.package import SIGNATURE, is_attestation
from pellucid.core.statement import parse_statement
from pellucid.core.trust import TrustRoot
from pellucid.errors import PellucidError, PolicyDeniedError, SignatureError, VerificationError
from pellucid.evidence import verify

Members = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Checked:
    """A bundle that holds: what was found to hold, what was not checked, and facts for machines."""

    holds: tuple[str, ...]
    notes: tuple[str, ...]
    facts: dict[str, Any]


def check_bundle(
    data: bytes, trust: TrustRoot, *, seen: bytes | None = None, policy: str | None = None
) -> Checked:
    """Return only if the bundle holds.

    Args:
        data: The bundle.
        trust: The reader's own keys.
        seen: Checkpoint that the reader saw before.
        policy: The reader's tlog-policy.

    Raises:
        VerificationError: It does not hold; names every place.
        PolicyDeniedError: It holds, but the policy asks for more.
        UsageError: A key is missing that the bundle needs.
    """
    report = run_verifier(data, trust, seen=seen, policy=policy)
    if report.failures:
        places = "; ".join(f"{item['place']}: {item['reason']}" for item in report.failures)
        raise VerificationError(f"evidence bundle: {places}")
    if report.refused:
        raise PolicyDeniedError(f"evidence bundle: {'; '.join(report.refused)}")
    try:
        second_opinion(data, trust, seen=seen)
    except PellucidError as error:
        raise VerificationError(
            f"evidence bundle: two verifiers disagree: verify.py finds it to hold, core says {error.message}",
            hint="this is a defect of pellucid: please report it with the bundle",
        ) from error
    return Checked(tuple(report.holds), tuple(report.notes), report.facts)


def run_verifier(
    data: bytes, trust: TrustRoot, *, seen: bytes | None = None, policy: str | None = None
) -> verify.Report:
    """Run ``verify.py`` in this process.

    Raises:
        VerificationError: A key or a checkpoint of the trust that is none.
    """
    try:
        log = verify.parse_log_key(trust.log_vkey)
        keys = {
            role: [key for pem in pems for key in verify.parse_public_keys(pem.decode("ascii"))]
            for role, pems in trust.keys.items()
        }
        before = verify.open_checkpoint("seen.checkpoint", seen, log) if seen is not None else None
        return verify.verify_bundle(data, verify.Trust(log, keys, policy, before))
    except (verify.Usage, verify.DoesNotHold, ValueError) as error:
        raise VerificationError(f"trust: {error}") from error


# -- the second opinion ---------------------------------------------------------------------------


def second_opinion(data: bytes, trust: TrustRoot, *, seen: bytes | None = None) -> None:
    """Check again, with other code, what everything else hangs on.

    Raises:
        PellucidError: Something does not hold.
    """
    members = container.read_container(data)
    _check_manifest(members, trust)
    now = verify_checkpoint(members["log/checkpoint"], trust.log_vkey)
    if seen is not None:
        _check_seen(members, verify_checkpoint(seen, trust.log_vkey), now)
    entries = {i: _check_entry(members, i, now) for i in _numbers(members, r"entries/(\d{12})\.json")}
    for index in _numbers(members, r"openings/(\d{12})\.json"):
        _check_outputs(canonical.decode(members[f"openings/{index:012d}.json"]), entries[index])
    for folder in sorted({name.split("/")[1] for name in members if name.startswith("packages/")}):
        _check_package(members, f"packages/{folder}/", trust)
    if "log/range.json" in members:
        _check_range(members, now)


def _numbers(members: Members, pattern: str) -> list[int]:
    return [int(match[1]) for match in (re.fullmatch(pattern, name) for name in members) if match]


def _check_manifest(members: Members, trust: TrustRoot) -> None:
    signed = None
    for pem in trust.of("exporter"):
        try:
            signed = verify_bundle(members[container.SIGNATURE], pem, container.PAYLOAD_TYPE)
        except SignatureError:
            continue
    if signed != members[container.MANIFEST]:
        raise SignatureError("manifest.json: expected what a trusted exporter signed, got something else")
    listed = {
        item["path"]: item for item in canonical.decode(signed, size_max=container.BUNDLE_MAX)["members"]
    }
    if listed.keys() != members.keys() - {container.MANIFEST, container.SIGNATURE}:
        raise VerificationError("manifest.json: expected the members of the bundle, got others")
    for name, item in listed.items():
        verify_digest(name, members[name], item["digest"])


def _check_seen(members: Members, before: Checkpoint, now: Checkpoint) -> None:
    raw = members.get("log/consistency.json")
    document = canonical.decode(raw) if raw else {"hashes": []}
    hashes = [bytes.fromhex(text) for text in document["hashes"]]
    verify_consistency(before.size, now.size, before.root, now.root, hashes)


def _check_entry(members: Members, index: int, now: Checkpoint) -> Entry:
    raw = members[f"entries/{index:012d}.json"]
    head = members[f"entries/{index:012d}.tlog-proof"].split(b"\n\n", 1)[0]
    hashes = [base64.b64decode(line, validate=True) for line in head.split(b"\n")[2:]]
    verify_inclusion(hash_leaf(raw), index, now.size, hashes, now.root)
    return parse_entry(raw)


def _check_outputs(document: dict[str, Any], entry: Entry) -> None:
    rows: list[dict[str, str]] = entry.data.get("rows") or document.get("rows") or []
    for opening in document["openings"]:
        if opening["kind"] != "output":
            continue
        digest = output_digest(bytes.fromhex(opening["digest"]), opening["label"], opening["confidence"])
        if not is_opening(rows[opening["row"]]["output"], bytes.fromhex(opening["key"]), digest):
            raise VerificationError(f"row {opening['row']}: expected its committed answer, got another")


def _check_package(members: Members, prefix: str, trust: TrustRoot) -> None:
    files = {name[len(prefix) :]: raw for name, raw in members.items() if name.startswith(prefix)}
    payload, _ = verify_by_any(prefix + SIGNATURE, files[SIGNATURE], trust.of("builder"))
    signed = {item["name"]: item["digest"] for item in parse_statement(payload).predicate["resources"]}
    for name, raw in files.items():
        if name != SIGNATURE and not is_attestation(name):
            verify_digest(prefix + name, raw, f"sha256:{signed.get(name)}")


def _check_range(members: Members, now: Checkpoint) -> None:
    proof = canonical.decode(members["log/range.json"])
    leaves = [hash_leaf(line) for line in members["log/range.jsonl"].split(b"\n")[:-1]]
    hashes = [bytes.fromhex(text) for text in proof["hashes"]]
    root = container.root_of_range(proof["start"], proof["stop"], now.size, leaves, hashes)
    if root != now.root:
        raise VerificationError("log/range.jsonl: expected this range of the log, got another")
