"""Nothing in a bundle, and nothing in the ledger behind it, can be changed unseen."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core import bundle as container
from pellucid.core import canonical
from pellucid.core.bundle import read_container, seal, write_container
from pellucid.core.checkpoint import Checkpoint, sign_checkpoint
from pellucid.core.digest import sha256
from pellucid.core.entry import parse_entry
from pellucid.core.merkle.hashing import hash_leaf, root_of
from pellucid.core.signature import verify_signature
from pellucid.errors import PellucidError, VerificationError
from pellucid.evidence import verify
from pellucid.evidence.check import check_bundle, run_verifier, second_opinion
from pellucid.testing.evidence import (
    CREATED,
    ORIGIN,
    ToyCase,
    ToyIsolated,
    export_toy,
    make_case,
    make_key,
    make_package,
    record_replay,
    replay_toy,
)

PAGES = ("index.html", "verify.py")  # large, and covered by the manifest like everything else


@pytest.fixture(scope="module")
def case() -> ToyCase:
    made = make_case()
    made.reports = dict([record_replay(made, replay_toy(made, ToyIsolated()))])
    return made


@pytest.fixture(scope="module")
def whole(case: ToyCase) -> bytes:
    return export_toy(case, reports=case.reports, inputs=case.rows)


@pytest.fixture(scope="module")
def small(case: ToyCase, whole: bytes) -> bytes:
    """The same evidence without the two pages: small enough to flip every byte of it."""
    members = evidence_of(whole)
    raw = reseal(case, {k: v for k, v in members.items() if k not in PAGES})
    assert run_verifier(raw, case.trust).status == 0
    return raw


def evidence_of(raw: bytes) -> dict[str, bytes]:
    members = read_container(raw)
    return {k: v for k, v in members.items() if k not in (container.MANIFEST, container.SIGNATURE)}


def reseal(case: ToyCase, members: dict[str, bytes]) -> bytes:
    """What an exporter who cheats would sign."""
    return seal(members, created=CREATED, signer=case.keys["exporter"])


def flipped(data: bytes, position: int, mask: int = 1) -> bytes:
    return data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]


def failures(raw: bytes, case: ToyCase) -> list[str]:
    report = run_verifier(raw, case.trust)
    assert report.status == (3 if report.failures else 0)
    return [f"{f['place']}: {f['reason']}" for f in report.failures]


# -- the bundle on its way


@pytest.fixture(scope="module")
def tiny(case: ToyCase) -> bytes:
    """A whole case of a call that ran alone, without the pages: small enough for every byte."""
    members = {k: v for k, v in evidence_of(export_toy(case, case.alone)).items() if k not in PAGES}
    raw = reseal(case, members)
    assert run_verifier(raw, case.trust).status == 0
    return raw


@functools.lru_cache(maxsize=100_000)
def fast_p256(public: bytes, message: bytes, signature: bytes) -> bool:
    """The same judgement by ``cryptography`` (test_evidence_crypto holds both equal), and remembered."""
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public)
    try:
        key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def trust_of_verifier(case: ToyCase) -> verify.Trust:
    keys = {role: verify.parse_public_keys(key.public_pem().decode()) for role, key in case.keys.items()}
    return verify.Trust(verify.parse_log_key(case.log.vkey), keys)


def test_every_single_byte_of_a_bundle(case: ToyCase, tiny: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exhaustive: each byte of the file changed, each time exit 3 and a place."""
    monkeypatch.setattr(verify, "is_p256", fast_p256)
    trust = trust_of_verifier(case)
    assert verify.verify_bundle(tiny, trust).status == 0
    for position in range(len(tiny)):
        report = verify.verify_bundle(flipped(tiny, position, 1 << position % 8), trust)
        assert report.status == 3, position
        assert all(failure["place"] for failure in report.failures)


def test_every_single_byte_of_every_member(
    case: ToyCase, tiny: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exhaustive: as above, by someone who makes the container fit again."""
    monkeypatch.setattr(verify, "is_p256", fast_p256)
    trust, members = trust_of_verifier(case), read_container(tiny)
    assert verify.verify_members(members, trust, verify.Report()).status == 0
    for name, data in members.items():
        for position in range(len(data)):
            changed = {**members, name: flipped(data, position, 1 << position % 8)}
            report = verify.verify_members(changed, trust, verify.Report())
            assert report.status == 3, (name, position)
            places = [failure["place"] for failure in report.failures]
            assert any(name in place or "manifest" in place for place in places), (name, position, places)


@given(st.data())
def test_any_change_anywhere_in_a_whole_bundle(case: ToyCase, whole: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(start, min(len(whole), start + 8)))
    patch = data.draw(st.binary(max_size=8))
    changed = whole[:start] + patch + whole[stop:]
    if changed != whole:
        assert failures(changed, case)


def test_members_left_out_added_or_renamed(case: ToyCase, small: bytes) -> None:
    members = read_container(small)
    for name in members:
        rest = {k: v for k, v in members.items() if k != name}
        assert any(name in text for text in failures(write_container(rest), case)), name
    assert failures(write_container({**members, "extra": b""}), case)
    assert failures(write_container({**members, "entries/000000000099.json": b"{}"}), case)


def test_a_manifest_of_another_bundle(case: ToyCase, small: bytes) -> None:
    other = read_container(reseal(case, {"case.json": b"{}"}))
    members = read_container(small)
    for names in ([container.MANIFEST], [container.SIGNATURE], [container.MANIFEST, container.SIGNATURE]):
        assert failures(write_container(members | {name: other[name] for name in names}), case)


def test_the_other_value_of_s_is_not_taken_for_the_manifest(case: ToyCase, small: bytes) -> None:
    members = read_container(small)
    envelope = json.loads(members[container.SIGNATURE])
    signature = envelope["dsseEnvelope"]["signatures"][0]
    r, s = verify.parse_der(verify.unbase64(signature["sig"]))
    other = container.encode_dss_signature(r, verify._N - s)
    signed = b"DSSEv1 %d %b %d %b" % (
        len(container.PAYLOAD_TYPE), container.PAYLOAD_TYPE.encode(),
        len(members[container.MANIFEST]), members[container.MANIFEST],
    )  # fmt: skip
    verify_signature(case.keys["exporter"].public_pem(), signed, other)  # a good signature, elsewhere
    signature["sig"] = verify.base64.b64encode(other).decode()
    raw = write_container({**members, container.SIGNATURE: canonical.encode(envelope)})
    assert failures(raw, case) == [
        "manifest.sigstore.json: expected the lower of the two values of s, "
        "so that the signature has one form"
    ]


# -- an exporter who cheats: everything resealed with the right exporter key


def evidence_members(members: dict[str, bytes]) -> Iterator[tuple[str, bytes]]:
    for name, data in members.items():
        if name not in PAGES and name != "case.json":
            yield name, data


def test_a_cheating_exporter_cannot_change_the_evidence(
    case: ToyCase, small: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every member but the pages and the claim stands on another signature than the exporter's."""
    monkeypatch.setattr(verify, "is_p256", fast_p256)
    members = evidence_of(small)
    for name, data in evidence_members(members):
        step = max(1, len(data) // 24)
        for position in range(0, len(data), step):
            changed = {**members, name: flipped(data, position)}
            assert failures(reseal(case, changed), case), (name, position)


def test_a_cheating_exporter_cannot_leave_evidence_out(case: ToyCase, small: bytes) -> None:
    members = evidence_of(small)
    for name in members:
        rest = {k: v for k, v in members.items() if k != name}
        report = run_verifier(reseal(case, rest), case.trust)
        whole = run_verifier(small, case.trust)
        # something fails, or the reader is told less: nothing is claimed that is not shown
        assert report.failures or set(report.holds) != set(whole.holds), name
        if name.startswith(("entries/", "log/")) or name.endswith(("model.sig", "/manifest.json")):
            assert report.failures, name


def test_a_cheating_exporter_cannot_swap_the_answer(case: ToyCase, small: bytes) -> None:
    members = evidence_of(small)
    name = "openings/000000000003.json"
    document = json.loads(members[name])
    for opening in document["openings"]:
        if opening["kind"] == "output":
            opening["label"] = "granted" if opening["label"] == "refused" else "refused"
    found = failures(reseal(case, {**members, name: canonical.encode(document)}), case)
    assert len(found) == 1
    assert "output, label or confidence differ" in found[0]


def test_a_cheating_exporter_cannot_show_another_package(case: ToyCase) -> None:
    other = make_package(case.keys, engine=b"\x10 another engine")
    found = failures(export_toy(case, files=other.files), case)
    assert any("expected the package" in text for text in found)


def test_a_cheating_exporter_cannot_put_in_what_nobody_checks(case: ToyCase, small: bytes) -> None:
    members = evidence_of(small)
    for name, data in {
        "openings/000000000001.json": b'{"entry":"x","openings":[]}',
        "inputs/000000000002.json": b'{"rows":[]}',
        "entries/000000000005.tlog-proof": b"x",
        "log/range.jsonl": b"{}\n",
        f"packages/{'0' * 64}/metadata.json": b"{}",
        f"policies/{'0' * 64}": b"other",
        f"replays/{'0' * 64}.sigstore.json": b"{}",
        next(n for n in members if n.endswith("model.sig")).replace("model.sig", "sbom.cdx.json"): b"{}",
    }.items():
        assert failures(reseal(case, {**members, name: data}), case), name


def test_a_claim_about_another_call_has_to_be_proven(case: ToyCase, small: bytes) -> None:
    members = evidence_of(small)
    for claim in ({"kind": "case", "call": "toy/1/0/2"}, {"kind": "period"}, {"kind": "x"}, {}, [], "case"):
        assert failures(reseal(case, {**members, "case.json": canonical.encode(claim)}), case), claim


# -- the ledger itself, without the log's key


def rewritten(case: ToyCase, entries: list[bytes], *, key=None) -> bytes:
    """A bundle from a ledger that somebody rewrote, with the checkpoint signed before (or by another key)."""
    case.log.publish()
    original, kept = case.log.checkpoint, case.log.entries
    case.log.entries = entries
    try:
        raw = export_toy(case)
        head = Checkpoint(ORIGIN, len(entries), root_of([hash_leaf(e) for e in entries]))
    finally:
        case.log.entries = kept
    members = evidence_of(raw)
    forged = original if key is None else sign_checkpoint(head, key)
    signed = members["log/checkpoint"]
    members = {k: v.replace(signed, forged) if "tlog-proof" in k else v for k, v in members.items()}
    return reseal(case, {**members, "log/checkpoint": forged})


def changed_value(case: ToyCase) -> list[bytes]:
    entries = list(case.log.entries)
    entry = parse_entry(entries[3])
    commitment = entry.data["rows"][0]["output"]
    entries[3] = entries[3].replace(commitment.encode(), b"hmac-sha256:" + b"0" * 64)
    return entries


@pytest.mark.parametrize("forger", [None, "another key"])
def test_one_value_changed_in_the_ledger(case: ToyCase, forger: str | None) -> None:
    raw = rewritten(case, changed_value(case), key=make_key("ed25519") if forger else None)
    found = failures(raw, case)
    assert any("entries/000000000003.json" in text or "log/checkpoint" in text for text in found)
    with pytest.raises(PellucidError):
        second_opinion(raw, case.trust)


def test_one_entry_removed_from_the_ledger(case: ToyCase) -> None:
    entries = [e for i, e in enumerate(case.log.entries) if i != 4]
    assert failures(rewritten(case, entries), case)


def test_outputs_swapped_between_two_rows(case: ToyCase) -> None:
    entries = list(case.log.entries)
    event = canonical.decode(entries[3])
    first, second = event["data"]["rows"]
    first["output"], second["output"] = second["output"], first["output"]
    entries[3] = canonical.encode(event)
    found = failures(rewritten(case, entries), case)
    assert any("entries/000000000003.json" in text for text in found)


def test_swapped_outputs_are_caught_even_if_the_log_itself_lied(case: ToyCase) -> None:
    """The batch and the openings still tell: a log that rewrites a call must rewrite both."""
    entries = list(case.log.entries)
    event = canonical.decode(entries[3])
    first, second = event["data"]["rows"]
    first["output"], second["output"] = second["output"], first["output"]
    entries[3] = canonical.encode(event)
    found = failures(rewritten(case, entries, key=case.log.key), case)
    assert any("does not hold the rows of the call" in text for text in found)
    assert any("does not open the commitment" in text for text in found)


def test_a_load_after_the_call_is_no_admission(case: ToyCase) -> None:
    entries = list(case.log.entries)
    entries[1], entries[4] = entries[4], entries[1]
    raw = rewritten(case, entries, key=case.log.key)
    assert failures(raw, case)


def test_one_byte_of_the_engine_is_another_package(case: ToyCase) -> None:
    files = dict(case.files.files)
    files["engine/model.onnx"] = flipped(files["engine/model.onnx"], 0)
    manifest = json.loads(files["manifest.json"])
    for item in manifest["files"]:
        if item["path"] == "engine/model.onnx":
            item["digest"] = sha256(files["engine/model.onnx"])
    files["manifest.json"] = canonical.encode(manifest)
    found = failures(export_toy(case, files=files), case)
    assert any("manifest.json: is not the file that the builder signed" in text for text in found)


def test_both_verifiers_refuse_what_was_changed(case: ToyCase, whole: bytes) -> None:
    for position in range(0, len(whole), len(whole) // 40):
        broken = flipped(whole, position)
        with pytest.raises(PellucidError):
            second_opinion(broken, case.trust)
        with pytest.raises(VerificationError):
            check_bundle(broken, case.trust)


def test_a_disagreement_of_the_verifiers_is_a_defect_and_said_so(
    case: ToyCase, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = flipped(whole, len(whole) // 2)
    monkeypatch.setattr("pellucid.evidence.check.run_verifier", lambda *_a, **_k: verify.Report())
    with pytest.raises(VerificationError, match="two verifiers disagree"):
        check_bundle(broken, case.trust)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("verdict", "refused", "was not allowed to load"),
        ("environment", "sha256:" + "0" * 64, "under another environment"),
        ("policy", "sha256:" + "0" * 64, "under another policy"),
        ("environment_facts", {"backend": "another"}, "its environment is not the one of its digest"),
    ],
)
def test_a_load_entry_has_to_fit_the_call(name: str, value: Any, said: str) -> None:
    """Even a log that signs anything cannot show an admission that does not fit."""
    made = make_case()
    event = canonical.decode(made.log.entries[1])
    event["data"][name] = value
    made.log.entries[1] = canonical.encode(event)
    found = failures(export_toy(made), made)
    assert any(said in text for text in found), found


def test_a_call_without_an_admission_is_not_shown_as_admitted(case: ToyCase, small: bytes) -> None:
    members = {k: v for k, v in evidence_of(small).items() if not k.startswith("entries/000000000001")}
    assert any(
        "no load entry in the bundle admits the engine" in t for t in failures(reseal(case, members), case)
    )


def test_a_replay_report_has_to_be_about_this_package() -> None:
    made = make_case()
    result = dataclasses.replace(replay_toy(made, ToyIsolated()), package="sha256:" + "1" * 64)
    digest, report = record_replay(made, result)
    found = failures(export_toy(made, reports={digest: report}), made)
    assert any("is not a replay report about this call" in text for text in found)
