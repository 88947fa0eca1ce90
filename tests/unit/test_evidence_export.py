"""A bundle holds for a stranger with the right keys, and for nobody else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pellucid.core.bundle import read_container
from pellucid.core.checkpoint import Checkpoint, sign_checkpoint
from pellucid.core.digest import sha256
from pellucid.core.entry import Opening
from pellucid.core.note import format_vkey
from pellucid.core.signature import raw_ed25519
from pellucid.core.times import parse_time
from pellucid.errors import NotFoundError, PolicyDeniedError, RollbackError, VerificationError
from pellucid.evidence import verify
from pellucid.evidence.chain import gather
from pellucid.evidence.check import check_bundle, run_verifier
from pellucid.evidence.export import export_period, verifier, view_log
from pellucid.evidence.period import find_period, widen
from pellucid.testing.evidence import (
    CREATED,
    ORIGIN,
    SOURCE,
    ToyCase,
    ToyIsolated,
    export_toy,
    features,
    make_case,
    make_key,
    record_replay,
    replay_toy,
)


@pytest.fixture
def case() -> ToyCase:
    return make_case()


def run(bundle: bytes, case: ToyCase, tmp_path: Path, *flags: str, seen: bytes | None = None) -> int:
    path = tmp_path / "bundle.zip"
    path.write_bytes(bundle)
    trust = case.write_trust(tmp_path / "trust", seen)
    return verify.main([str(path), "--trust", str(trust), *flags])


def test_a_stranger_verifies_with_python_alone(case: ToyCase, tmp_path: Path) -> None:
    """Copied out alone, isolated, in another folder: no pellucid within reach."""
    (tmp_path / "bundle.zip").write_bytes(export_toy(case, inputs=case.rows))
    (tmp_path / "verify.py").write_bytes(verifier())
    case.write_trust(tmp_path / "trust")
    done = subprocess.run(
        [sys.executable, "-I", "verify.py", "bundle.zip", "--trust", "trust"],
        cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "HOLDS" in done.stdout
    assert "row 0: answered 'granted'" in done.stdout
    assert "row 1: the input given is the input of this call" in done.stdout
    assert "cannot be told from a young one" in " ".join(done.stdout.split())


def test_the_verifier_needs_the_standard_library_only() -> None:
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); print(*sys.modules)"
    path = Path(verify.__file__)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded <= set(sys.stdlib_module_names) | {"__main__"}


def test_both_verifiers_find_that_it_holds(case: ToyCase) -> None:
    checked = check_bundle(export_toy(case, inputs=case.rows), case.trust)
    assert checked.facts["call"] == case.call
    assert checked.facts["package"] == case.package.digest
    assert any("batch holds the call's rows" in text for text in checked.holds)
    assert any("admitted on" in text for text in checked.holds)


def test_a_call_that_ran_alone_holds(case: ToyCase) -> None:
    check_bundle(export_toy(case, case.alone), case.trust)


@pytest.mark.parametrize("rows", [17, 40])
def test_a_call_of_many_rows_opens_each_of_them(rows: int) -> None:
    case = make_case(rows_alone=rows)
    checked = check_bundle(export_toy(case, case.alone), case.trust)
    assert any(f"row {rows - 1}: answered" in text for text in checked.holds)


def test_neighbours_in_the_batch_stay_closed(case: ToyCase) -> None:
    members = read_container(export_toy(case))
    neighbour = case.log.vault.openings(f"{SOURCE}/2")
    secrets = [o.key.hex().encode() for o in neighbour] + [
        o.digest.hex().encode() for o in neighbour if o.digest
    ]
    assert secrets
    for name, data in members.items():
        assert not any(secret in data for secret in secrets), name
        assert f"{SOURCE}/2".encode() not in data, name


def test_the_same_case_exports_to_the_same_members(case: ToyCase) -> None:
    first, second = read_container(export_toy(case)), read_container(export_toy(case))
    first.pop("manifest.sigstore.json"), second.pop("manifest.sigstore.json")
    first.pop("log/checkpoint"), second.pop("log/checkpoint")
    assert first == second


def test_json_output_is_for_machines(
    case: ToyCase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(export_toy(case), case, tmp_path, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["result"], result["exit"], result["failures"]) == ("holds", 0, [])
    assert result["facts"]["size"] == len(case.log.entries)


# -- trust


@pytest.mark.parametrize("role", ["exporter", "builder", "qualifier"])
def test_a_key_that_is_not_the_readers_own_is_not_believed(case: ToyCase, tmp_path: Path, role: str) -> None:
    bundle = export_toy(case)
    trust = case.write_trust(tmp_path / "trust")
    (trust / f"{role}.pem").write_bytes(make_key().public_pem())
    (tmp_path / "b.zip").write_bytes(bundle)
    assert verify.main([str(tmp_path / "b.zip"), "--trust", str(trust)]) == 3


def test_several_keys_of_a_role_are_all_believed(case: ToyCase, tmp_path: Path) -> None:
    trust = case.write_trust(tmp_path / "trust")
    pem = make_key().public_pem() + case.keys["exporter"].public_pem()
    (trust / "exporter.pem").write_bytes(pem)
    (tmp_path / "b.zip").write_bytes(export_toy(case))
    assert verify.main([str(tmp_path / "b.zip"), "--trust", str(trust)]) == 0


def test_another_logs_key_is_not_believed(case: ToyCase, tmp_path: Path) -> None:
    trust = case.write_trust(tmp_path / "trust")
    other = make_key("ed25519")
    (trust / "log.vkey").write_text(format_vkey(ORIGIN, 1, raw_ed25519(other.public_pem())))
    (tmp_path / "b.zip").write_bytes(export_toy(case))
    assert verify.main([str(tmp_path / "b.zip"), "--trust", str(trust)]) == 3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: (t / "log.vkey").unlink(),
        lambda t: (t / "exporter.pem").unlink(),
        lambda t: (t / "builder.pem").unlink(),
        lambda t: (t / "log.vkey").write_text("nonsense"),
        lambda t: (t / "exporter.pem").write_text("nonsense"),
        lambda t: (t / "seen.checkpoint").write_text("nonsense"),
        lambda t: (t / "policy.txt").write_text("nonsense"),
        lambda t: (t / "policy.txt").write_text("log nonsense\nquorum none\n"),
        lambda t: (t / "builder.pem").write_bytes(b"\xff\xfe"),
    ],
)
def test_a_trust_folder_that_cannot_be_used_is_usage(case: ToyCase, tmp_path: Path, spoil) -> None:
    trust = case.write_trust(tmp_path / "trust")
    spoil(trust)
    (tmp_path / "b.zip").write_bytes(export_toy(case))
    assert verify.main([str(tmp_path / "b.zip"), "--trust", str(trust)]) == 2


def test_missing_files_and_arguments_are_usage(case: ToyCase, tmp_path: Path) -> None:
    trust = str(case.write_trust(tmp_path / "trust"))
    assert verify.main([str(tmp_path / "none.zip"), "--trust", trust]) == 2
    for arguments in ([], [str(tmp_path)], ["a", "--trust"], ["a", "--trust", "b", "--unknown"]):
        with pytest.raises(SystemExit) as caught:
            verify.main(arguments)
        assert caught.value.code == 2


# -- the log over time


def test_a_bundle_continues_the_checkpoint_its_reader_saw(case: ToyCase, tmp_path: Path) -> None:
    case.log.publish()
    seen = case.log.checkpoint
    case.log.event("read", {"what": "answer"})
    assert run(export_toy(case, seen=seen), case, tmp_path, seen=seen) == 0
    check_bundle(export_toy(case, seen=seen), case.trust, seen=seen)


def test_exactly_the_checkpoint_seen_needs_no_proof(case: ToyCase, tmp_path: Path) -> None:
    bundle = export_toy(case)
    assert run(bundle, case, tmp_path, seen=case.log.checkpoint) == 0


def test_without_the_proof_it_may_be_forked(
    case: ToyCase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case.log.publish()
    seen = case.log.checkpoint
    case.log.event("read", {"what": "answer"})
    assert run(export_toy(case), case, tmp_path, seen=seen) == 3
    assert "export again with --seen" in capsys.readouterr().out


def test_an_older_folder_is_caught(case: ToyCase, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Someone restores yesterday's ledger: nothing in it is forged, it is only older."""
    old = export_toy(case)
    case.log.event("read", {"what": "answer"})
    case.log.publish()
    seen = case.log.checkpoint
    assert run(old, case, tmp_path, seen=seen) == 3
    assert "older than the checkpoint you saw" in capsys.readouterr().out
    with pytest.raises(VerificationError, match="older than"):
        check_bundle(old, case.trust, seen=seen)


def test_a_forked_log_of_the_same_size_is_caught(
    case: ToyCase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = sign_checkpoint(Checkpoint(ORIGIN, len(case.log.entries), b"f" * 32), case.log.key)
    assert run(export_toy(case), case, tmp_path, seen=seen) == 3
    assert "forked from the checkpoint you saw" in capsys.readouterr().out


def test_a_forked_log_that_grew_is_caught(case: ToyCase, tmp_path: Path) -> None:
    seen = sign_checkpoint(Checkpoint(ORIGIN, 3, b"f" * 32), case.log.key)
    assert run(export_toy(case, seen=seen), case, tmp_path, seen=seen) == 3


def test_the_exporter_refuses_to_serve_a_rolled_back_log(case: ToyCase) -> None:
    seen = sign_checkpoint(Checkpoint(ORIGIN, 99, b"f" * 32), case.log.key)
    with pytest.raises(RollbackError):
        export_toy(case, seen=seen)


# -- the reader's policy


def witness(checkpoint: bytes) -> tuple[str, bytes]:
    """Verifier key of a witness, and a checkpoint that it cosigned."""
    import base64
    import hashlib

    key = make_key("ed25519")
    raw = b"\x04" + raw_ed25519(key.public_pem())
    name = "witness.example/w"
    key_id = hashlib.sha256(name.encode() + b"\n" + raw).digest()[:4]
    text = checkpoint.split(b"\n\n")[0] + b"\n"
    when = 1_796_000_000
    signature = key.sign(b"cosignature/v1\ntime %d\n" % when + text)
    blob = base64.b64encode(key_id + when.to_bytes(8, "big") + signature).decode()
    vkey = f"{name}+{key_id.hex()}+{base64.b64encode(raw).decode()}"
    return vkey, checkpoint + f"\u2014 {name} {blob}\n".encode()


def policy_status(case: ToyCase, policy: str) -> int:
    return run_verifier(export_toy(case), case.trust, policy=policy).status


def test_policy_without_witnesses(case: ToyCase) -> None:
    assert policy_status(case, f"# mine\nlog {case.log.vkey}\nquorum none\n") == 0


def test_policy_that_does_not_list_the_log_refuses(case: ToyCase) -> None:
    other = format_vkey("other/log", 1, raw_ed25519(make_key("ed25519").public_pem()))
    assert policy_status(case, f"log {other}\nquorum none\n") == 4
    with pytest.raises(PolicyDeniedError):
        check_bundle(export_toy(case), case.trust, policy=f"log {other}\nquorum none\n")


def test_policy_that_asks_for_a_witness_refuses_without_one(case: ToyCase) -> None:
    vkey, _ = witness(b"a\n\n")
    policy = f"log {case.log.vkey}\nwitness w1 {vkey}\ngroup all2 all w1\n"
    assert policy_status(case, policy.replace("group all2 all w1\n", "quorum w1\n")) == 4


@pytest.mark.parametrize(("group", "status"), [("any", True), ("all", False), ("1", True), ("2", False)])
def test_policy_groups_count_witnesses(case: ToyCase, group: str, status: bool) -> None:
    case.log.publish()
    vkey, cosigned = witness(case.log.checkpoint)
    absent, _ = witness(b"a\n\n")
    log = verify.parse_log_key(case.log.vkey)
    checkpoint = verify.open_checkpoint("c", cosigned, log)
    witnesses = f"witness a {vkey}\nwitness b {absent}\n"
    policy = f"log {case.log.vkey} https://x\n{witnesses}group g {group} a b\nquorum g\n"
    if status:
        assert "quorum 'g'" in verify.verify_policy(policy, checkpoint, log)
    else:
        with pytest.raises(verify.PolicyRefuses):
            verify.verify_policy(policy, checkpoint, log)


# -- replays, erasures, periods


def test_a_replay_report_travels_with_its_entry(case: ToyCase) -> None:
    digest, report = record_replay(case, replay_toy(case, ToyIsolated()))
    checked = check_bundle(export_toy(case, reports={digest: report}), case.trust)
    assert checked.facts["replays"] == ["bit-exact"]


def test_a_replay_report_about_another_call_is_refused(case: ToyCase) -> None:
    digest, report = record_replay(case, replay_toy(case, ToyIsolated()))
    with pytest.raises(VerificationError, match="not a replay report about this call"):
        check_bundle(export_toy(case, case.alone, reports={digest: report}), case.trust)


def test_a_replay_report_that_the_log_does_not_hold_is_refused(case: ToyCase) -> None:
    digest, report = record_replay(case, replay_toy(case, ToyIsolated()))
    case.log.entries.pop()
    with pytest.raises(VerificationError, match="no replay entry"):
        check_bundle(export_toy(case, reports={digest: report}), case.trust)


def test_erased_values_leave_every_proof_valid(case: ToyCase) -> None:
    del case.log.vault.held[case.call]
    case.log.event("erasure", {"call": case.call, "rule": "GDPR 17", "reason": "asked"})
    bundle = export_toy(case)
    assert not [name for name in read_container(bundle) if name.startswith("openings/")]
    checked = check_bundle(bundle, case.trust)
    assert any(
        "all values of this call were erased on" in text and "GDPR 17" in text for text in checked.holds
    )


def test_one_erased_row_leaves_the_other_open() -> None:
    case = make_case()
    kept = tuple(o for o in case.log.vault.held[case.call] if o.row != 0)
    case.log.vault.held[case.call] = kept
    checked = check_bundle(export_toy(case), case.trust)
    assert any("row 1: answered" in text for text in checked.holds)
    assert not any("row 0" in text for text in checked.holds)
    case.log.event("erasure", {"call": case.call, "rows": [0], "rule": "GDPR 17"})
    checked = check_bundle(export_toy(case), case.trust)
    assert any("rows [0] of this call were erased on" in text for text in checked.holds)


def test_the_erasure_of_a_subject_does_not_name_the_call(case: ToyCase) -> None:
    del case.log.vault.held[case.call]
    by = case.log.event("erasure", {"rule": "GDPR 17", "reason": "asked"}, {"subject": "someone"})
    case.log.vault.erased_by[case.call] = by
    checked = check_bundle(export_toy(case), case.trust)
    assert any("all values of a subject were erased on" in note for note in checked.notes)


def test_a_wrong_original_input_is_named(case: ToyCase) -> None:
    with pytest.raises(VerificationError, match="row 1: is not the input that the call committed to"):
        check_bundle(export_toy(case, inputs={0: case.rows[0], 1: features(9.0, 9.0)}), case.trust)


@pytest.mark.parametrize(("start", "stop"), [(0, 6), (1, 4), (5, 6), (0, 1)])
def test_a_period_holds_with_nothing_left_out(case: ToyCase, start: int, stop: int) -> None:
    reader = case.log.publish()
    view = view_log(reader, case.log.vkey)
    bundle = export_period(reader, view, start, stop, created=CREATED, signer=case.keys["exporter"])
    checked = check_bundle(bundle, case.trust)
    assert (checked.facts["start"], checked.facts["stop"]) == (start, stop)


def test_a_period_outside_the_log_is_not_found(case: ToyCase) -> None:
    reader = case.log.publish()
    for start, stop in ((0, 7), (3, 3), (-1, 2)):
        with pytest.raises(NotFoundError):
            export_period(
                reader,
                view_log(reader, case.log.vkey),
                start,
                stop,
                created=CREATED,
                signer=case.keys["exporter"],
            )


def test_a_call_that_is_not_there_is_not_found(case: ToyCase) -> None:
    with pytest.raises(NotFoundError, match="toy/9/9/9"):
        gather(case.log.publish(), "toy/9/9/9")


def test_an_opening_of_nothing_is_not_exported_as_one(case: ToyCase) -> None:
    rows = Opening("rows", -1, b"", b"[]")
    case.log.vault.held[case.call] = (*case.log.vault.held[case.call], rows)
    document = json.loads(read_container(export_toy(case))["openings/000000000003.json"])
    assert {opening["kind"] for opening in document["openings"]} == {"input", "output", "caller", "trace_id"}


def test_the_verifier_in_the_bundle_is_this_one(case: ToyCase) -> None:
    members = read_container(export_toy(case))
    assert sha256(members["verify.py"]) == sha256(Path(verify.__file__).read_bytes())


# -- completeness of a period


def with_epoch(case: ToyCase, last: int, **closing) -> ToyCase:
    """The toy's calls 1 to 3, between an opening and a closing entry of their worker."""
    opened = {"epoch": 1, "worker": 0, "workers": 1, "phase": "open"}
    case.log.event("epoch", opened)
    case.log.entries.insert(0, case.log.entries.pop())
    case.log.event("epoch", {"epoch": 1, "worker": 0, "phase": "closed", "last": [last], **closing})
    return case


def period(case: ToyCase, start: int = 0, stop: int | None = None) -> bytes:
    reader = case.log.publish()
    view = view_log(reader, case.log.vkey)
    stop = stop or len(case.log.entries)
    return export_period(reader, view, start, stop, created=CREATED, signer=case.keys["exporter"])


def test_a_whole_epoch_is_counted(case: ToyCase) -> None:
    checked = check_bundle(period(with_epoch(case, 3)), case.trust)
    assert any("calls 1 to 3, 3 recorded, each closed exactly once" in text for text in checked.holds)


def test_a_number_without_an_entry_is_missing(case: ToyCase) -> None:
    with pytest.raises(VerificationError, match=r"1 of the calls 1 to 4 are missing, the first is 4"):
        check_bundle(period(with_epoch(case, 4)), case.trust)


def test_a_number_beyond_the_last_is_refused(case: ToyCase) -> None:
    with pytest.raises(VerificationError, match="beyond the last one given out"):
        check_bundle(period(with_epoch(case, 2)), case.trust)


def test_a_number_closed_twice_is_refused(case: ToyCase) -> None:
    case.log.entries.append(case.log.entries[3])
    with pytest.raises(VerificationError, match="closed twice"):
        check_bundle(period(case), case.trust)


def test_part_of_an_epoch_says_that_it_cannot_be_counted(case: ToyCase) -> None:
    with_epoch(case, 3)
    checked = check_bundle(period(case, 1), case.trust)
    assert any("its opening entry lies outside" in note for note in checked.notes)
    checked = check_bundle(period(case, 0, len(case.log.entries) - 1), case.trust)
    assert any("its closing entry lies outside" in note for note in checked.notes)


def test_an_epoch_or_worker_without_an_entry_is_missing(case: ToyCase) -> None:
    """Somebody deleted journal and board of a whole run before they were integrated."""
    with_epoch(case, 3)
    for phase in ({"phase": "open", "workers": 2}, {"phase": "closed", "last": [0]}):
        case.log.event("epoch", {"epoch": 3, "worker": 0, **phase})
    raw = period(case)
    with pytest.raises(VerificationError, match="toy/2: no entry of this epoch"):
        check_bundle(raw, case.trust)
    with pytest.raises(VerificationError, match="toy/3/1: no entry of this worker"):
        check_bundle(raw, case.trust)
    notes = check_bundle(period(case, 1), case.trust).notes
    assert any("toy/2: no entry of this epoch" in note for note in notes)
    assert any("toy/3/1: no entry of this worker" in note for note in notes)


def test_a_period_is_widened_to_whole_epochs(case: ToyCase) -> None:
    with_epoch(case, 3)
    reader = case.log.publish()
    call = gather(reader, case.call).call
    at = parse_time(call.entry.time)
    start, stop = find_period(reader, at, at)
    assert start < call.index < stop
    assert widen(reader, start, stop) == (0, len(case.log.entries))
    assert widen(reader, 1, 2) == (1, 2)
    with pytest.raises(NotFoundError):
        find_period(reader, 1, 2)
