"""Replay says bit-exact only for the recorded bits, and names what explains any other answer."""

from __future__ import annotations

import copy
import dataclasses
import struct

import pytest

from pellucid.core.digest import sha256
from pellucid.core.divergence import BIT_EXACT, DIFFERENT, WITHIN_BOUND, find_changes
from pellucid.core.dsse import verify_bundle
from pellucid.core.entry import Opening, encode_outputs, parse_entry
from pellucid.core.statement import PAYLOAD_TYPE, REPLAY, parse_statement
from pellucid.core.tensor import Tensor
from pellucid.core.trust import verify_package
from pellucid.errors import (
    DigestMismatchError,
    ErasedError,
    ProofError,
    ReplayMismatchError,
    UsageError,
)
from pellucid.evidence.chain import gather
from pellucid.replay.replay import Past, replay_call
from pellucid.replay.report import make_predicate, render_report, sign_report
from pellucid.testing.evidence import (
    CREATED,
    ENVIRONMENT,
    ToyCase,
    ToyIsolated,
    features,
    make_case,
    make_key,
    make_package,
    replay_toy,
    score,
    trust_of,
)


@pytest.fixture
def case() -> ToyCase:
    return make_case()


def past_of(case: ToyCase, call: str | None = None) -> Past:
    chain = gather(case.log.publish(), call or case.call)
    return Past(chain.call.entry, chain.openings, tuple(e.entry for e in chain.erasures), ENVIRONMENT)


def test_the_same_engine_and_input_give_the_same_bits(case: ToyCase) -> None:
    isolated = ToyIsolated()
    result = replay_toy(case, isolated)
    assert result.verdict == BIT_EXACT
    assert [(r.row, r.label, r.replayed_label) for r in result.rows] == [
        (0, "granted", "granted"),
        (1, "refused", "refused"),
    ]
    assert (result.bucket, result.slot, result.changes, result.causes, result.cause) == (4, 0, (), (), "")
    assert isolated.runs == 1


@pytest.mark.parametrize("row", [0, 1])
def test_one_row_is_replayed_alone_at_its_own_slot(case: ToyCase, row: int) -> None:
    seen = []

    class Spy(ToyIsolated):
        def infer(self, backend, engine, recipe, batches):
            seen.append(bytes(batches[0][0].data))
            return super().infer(backend, engine, recipe, batches)

    result = replay_toy(case, Spy(), rows=[row])
    assert result.verdict == BIT_EXACT
    own = bytes(case.rows[row][0].data)
    assert seen == [bytes(8 * row) + own + bytes(8 * (3 - row))]  # zeros everywhere else


@pytest.mark.parametrize("rows", [1, 16, 17, 40])
def test_calls_of_any_size_replay_row_by_row(rows: int) -> None:
    case = make_case(rows_alone=rows)
    past = past_of(case, case.alone)
    last = {rows - 1: features(1.0 + rows - 1, 0.5)}
    assert replay_call(past, last, case.package, ToyIsolated()).verdict == BIT_EXACT
    with pytest.raises(ReplayMismatchError):
        replay_call(past, {rows - 1: features(0.0, 0.5)}, case.package, ToyIsolated())


def test_a_second_call_of_the_batch_lies_at_its_own_slot(case: ToyCase) -> None:
    past = past_of(case, "toy/1/0/2")
    assert replay_call(past, {0: features(2.0, 3.0)}, case.package, ToyIsolated()).slot == 2


# -- what must not be replayed


@pytest.mark.parametrize(
    "wrong",
    [
        {0: features(1.0, 0.25), 1: features(0.25, 1.5)},
        {0: features(1.0, 0.25), 1: (Tensor("other", "FP32", (1, 2), features(0.25, 1.0)[0].data),)},
        {1: features(1.0, 0.25)},
    ],
)
def test_another_input_is_refused_and_its_row_named(case: ToyCase, wrong) -> None:
    isolated = ToyIsolated()
    with pytest.raises(ReplayMismatchError, match=r"got another in row 1$") as caught:
        replay_call(past_of(case), wrong, case.package, isolated)
    assert caught.value.exit_code == 6
    assert isolated.runs == 0


def test_minus_zero_is_another_input(case: ToyCase) -> None:
    made = make_case()
    past = past_of(made, made.alone)
    data = struct.pack("<2f", 1.0, 0.5)
    assert replay_call(past, {0: (Tensor("features", "FP32", (1, 2), data),)}, made.package, ToyIsolated())
    with pytest.raises(ReplayMismatchError):
        replay_call(past, {0: features(1.0, -0.5)}, made.package, ToyIsolated())


@pytest.mark.parametrize("rows", [{}, {2: features(1.0, 1.0)}, {-1: features(1.0, 1.0)}])
def test_rows_the_call_does_not_have_are_usage(case: ToyCase, rows) -> None:
    with pytest.raises(UsageError, match="expected rows of 0 to 1"):
        replay_call(past_of(case), rows, case.package, ToyIsolated())


def test_an_erased_call_says_when_and_under_which_rule(case: ToyCase) -> None:
    del case.log.vault.held[case.call]
    case.log.event("erasure", {"call": case.call, "rule": "GDPR 17", "reason": "asked"})
    with pytest.raises(ErasedError, match=r"row 0: erased on 2026-.* under GDPR 17") as caught:
        replay_toy(case, ToyIsolated())
    assert caught.value.exit_code == 6


def test_an_erased_subject_says_so_too(case: ToyCase) -> None:
    del case.log.vault.held[case.call]
    by = case.log.event("erasure", {"rule": "GDPR 17", "reason": "asked"}, {"subject": "someone"})
    case.log.vault.erased_by[case.call] = by
    with pytest.raises(ErasedError, match=r"row 0: erased on .* under GDPR 17"):
        replay_toy(case, ToyIsolated())


def test_one_erased_row_leaves_the_other_to_replay(case: ToyCase) -> None:
    held = case.log.vault.held
    held[case.call] = tuple(o for o in held[case.call] if o.row != 0)
    case.log.event("erasure", {"call": case.call, "rows": [0], "rule": "GDPR 17"})
    assert replay_toy(case, ToyIsolated(), rows=[1]).verdict == BIT_EXACT
    with pytest.raises(ErasedError):
        replay_toy(case, ToyIsolated(), rows=[0])


def test_a_missing_key_is_lost_and_never_called_erased(case: ToyCase) -> None:
    del case.log.vault.held[case.call]
    with pytest.raises(ReplayMismatchError, match="its key is lost"):
        replay_toy(case, ToyIsolated())
    case.log.event("erasure", {"call": case.call, "rows": [1], "rule": "GDPR 17"})
    with pytest.raises(ReplayMismatchError, match="its key is lost"):
        replay_toy(case, ToyIsolated(), rows=[0])


def test_another_package_is_refused(case: ToyCase) -> None:
    keys = case.keys
    other = verify_package(make_package(keys, engine=b"\x10 another"), trust_of(keys))
    with pytest.raises(DigestMismatchError, match="package of call"):
        replay_call(past_of(case), case.rows, other, ToyIsolated())


@pytest.mark.parametrize("outcome", ["refused", "failed", "unresolved"])
def test_a_call_without_an_answer_has_nothing_to_replay(case: ToyCase, outcome: str) -> None:
    past = past_of(case)
    entry = dataclasses.replace(past.entry, data=past.entry.data | {"outcome": outcome})
    with pytest.raises(UsageError, match=outcome):
        replay_call(dataclasses.replace(past, entry=entry), case.rows, case.package, ToyIsolated())


def test_rows_that_are_not_below_the_root_are_refused() -> None:
    case = make_case(rows_alone=20)
    past = past_of(case, case.alone)
    (kept,) = [o for o in past.openings if o.kind == "rows"]
    assert kept.value is not None
    other = Opening("rows", -1, b"", kept.value.replace(b"hmac-sha256:", b"hmac-sha257:", 1))
    spoiled = (*[o for o in past.openings if o.kind != "rows"], other)
    row = {0: features(1.0, 0.5)}
    with pytest.raises(ProofError):
        replay_call(dataclasses.replace(past, openings=spoiled), row, case.package, ToyIsolated())


# -- verdicts other than bit-exact, and their cause


def test_within_the_measured_bound_and_the_same_decision(case: ToyCase) -> None:
    result = replay_toy(case, ToyIsolated(shift=2.0**-18))
    assert result.verdict == WITHIN_BOUND
    assert all(row.label == row.replayed_label for row in result.rows)
    assert "did not come from this engine" in result.cause


def test_beyond_the_bound_is_different(case: ToyCase) -> None:
    result = replay_toy(case, ToyIsolated(shift=2.0**-10))
    assert result.verdict == DIFFERENT
    assert "the bound is 1e-05" in result.rows[0].reason


def test_a_declared_tolerance_widens_the_bound(case: ToyCase) -> None:
    result = replay_call(past_of(case), case.rows, case.package, ToyIsolated(shift=2.0**-10), tolerance=0.01)
    assert result.verdict == WITHIN_BOUND


def test_a_flipped_decision_is_different_however_small(case: ToyCase) -> None:
    """Row 0 scores exactly the threshold: the smallest step down flips it."""
    result = replay_toy(case, ToyIsolated(shift=-(2.0**-24)))
    assert result.rows[0].verdict == DIFFERENT
    assert "the decision flipped from 'granted' to 'refused'" in result.rows[0].reason
    assert result.verdict == DIFFERENT


@pytest.mark.parametrize("what", ["entry", "value", "label"])
def test_kept_outputs_that_are_not_the_committed_ones_count_for_nothing(case: ToyCase, what: str) -> None:
    """Neither a changed entry nor a changed vault makes 'within bound' of a stranger's numbers."""
    past, held = past_of(case), case.log.vault.held[case.call]
    (first, *_) = [o for o in held if o.kind == "output"]
    other = {
        "entry": first,
        "value": Opening("output", 0, first.key, encode_outputs([score(features(9.0, 1.0)[0], b"\xc0")]),
                         first.label, first.confidence, first.digest),
        "label": Opening("output", 0, first.key, first.value, "refused", first.confidence, first.digest),
    }[what]  # fmt: skip
    spoiled = tuple(other if o is first else o for o in past.openings)
    past = dataclasses.replace(past, openings=spoiled)
    if what == "entry":
        data = copy.deepcopy(past.entry.data)
        data["rows"][0]["output"] = "hmac-sha256:" + "0" * 64
        past = dataclasses.replace(past, entry=dataclasses.replace(past.entry, data=data))
    isolated = ToyIsolated(shift=0.0 if what == "entry" else 2.0**-18)
    result = replay_call(past, case.rows, case.package, isolated)
    assert result.rows[0].verdict == DIFFERENT
    assert "do not open the commitment" in result.rows[0].reason


def test_outputs_that_were_not_kept_cannot_be_measured(case: ToyCase) -> None:
    held = case.log.vault.held
    held[case.call] = tuple(
        type(o)(o.kind, o.row, o.key, None, o.label, o.confidence, o.digest) if o.kind == "output" else o
        for o in held[case.call]
    )
    assert replay_toy(case, ToyIsolated()).verdict == BIT_EXACT
    result = replay_toy(case, ToyIsolated(shift=2.0**-18))
    assert result.verdict == DIFFERENT
    assert "were not kept" in result.rows[0].reason


class Elsewhere(ToyIsolated):
    """Answers as recorded only when one recorded factor is changed: the record of it was wrong."""

    def __init__(self, factor: str, value) -> None:
        super().__init__()
        self.factor, self.value = factor, value

    def infer(self, backend, engine, recipe, batches):
        (tensor,) = batches[0]
        first = next(i for i in range(0, len(tensor.data), 4) if any(tensor.data[i : i + 4]))
        filled = sum(any(tensor.data[i : i + 8]) for i in range(0, len(tensor.data), 8))
        now = {
            "bucket": tensor.shape[0],
            "slot": first // 8,
            "threads": recipe["threads"],
            "serve_level": recipe["serve_level"],
            "neighbours": filled > 2,
        }[self.factor]
        self.shift = 0.0 if now == self.value else 2.0**-18
        return super().infer(backend, engine, recipe, batches)


@pytest.mark.parametrize(
    ("factor", "value", "said"),
    [
        ("bucket", 8, "bucket: the recorded bits come back with 8 instead of the recorded 4"),
        ("slot", 2, "slot: the recorded bits come back with 2 instead of the recorded 0"),
        ("threads", 4, "threads: the recorded bits come back with 4 instead of the recorded 1"),
        ("serve_level", "native", "serve_level: the recorded bits come back with native"),
        ("neighbours", True, "neighbours: the recorded bits come back with copies of the row"),
    ],
)
def test_the_one_factor_that_brings_the_bits_back_is_the_cause(
    case: ToyCase, factor: str, value, said: str
) -> None:
    result = replay_toy(case, Elsewhere(factor, value))
    assert result.verdict == WITHIN_BOUND
    assert result.cause.startswith(said)
    assert [c.factor for c in result.causes if c.effect == "brings the recorded bits back"] == [factor]


def test_an_engine_that_does_not_repeat_itself_is_named(case: ToyCase) -> None:
    class Moody(ToyIsolated):
        def infer(self, backend, engine, recipe, batches):
            self.shift = 2.0**-18 if self.runs == 0 else 0.0
            return super().infer(backend, engine, recipe, batches)

    assert "does not repeat itself" in replay_toy(case, Moody()).cause


def test_another_environment_is_reported_in_full_and_named_as_the_cause(case: ToyCase) -> None:
    isolated = ToyIsolated(shift=2.0**-18)
    isolated.environment = ENVIRONMENT | {"onnxruntime": "1.28.0", "device": {"kind": "cpu", "isa": ["sse"]}}
    result = replay_toy(case, isolated)
    assert [c.what for c in result.changes] == ["device.isa", "device.name", "onnxruntime"]
    assert "device.isa (['avx2'] then, ['sse'] now)" in result.cause
    assert "onnxruntime (1.27.0 then, 1.28.0 now)" in result.cause


def test_another_environment_with_the_same_bits_is_still_reported(case: ToyCase) -> None:
    isolated = ToyIsolated()
    isolated.environment = ENVIRONMENT | {"onnxruntime": "1.28.0"}
    result = replay_toy(case, isolated)
    assert result.verdict == BIT_EXACT
    assert [(c.what, c.recorded, c.now) for c in result.changes] == [("onnxruntime", "1.27.0", "1.28.0")]


def test_an_environment_known_by_its_digest_only(case: ToyCase) -> None:
    past = dataclasses.replace(past_of(case), environment=None)
    assert replay_call(past, case.rows, case.package, ToyIsolated()).changes == ()
    isolated = ToyIsolated()
    isolated.environment = ENVIRONMENT | {"onnxruntime": "1.28.0"}
    changes = replay_call(past, case.rows, case.package, isolated).changes
    assert [c.what for c in changes] == ["environment digest", "since qualification.onnxruntime"]


def test_changes_name_what_came_and_what_went() -> None:
    changes = find_changes({"a": {"b": 1, "c": "x"}}, {"a": {"b": 2}, "d": [1]})
    assert [(c.what, c.recorded, c.now) for c in changes] == [
        ("a.b", "1", "2"), ("a.c", "x", "absent"), ("d", "absent", "[1]"),
    ]  # fmt: skip


# -- the report


def test_the_report_is_signed_about_exactly_this_call(case: ToyCase) -> None:
    result = replay_toy(case, ToyIsolated())
    raw = sign_report(make_predicate(result, time=CREATED), case.keys["replayer"])
    payload = verify_bundle(raw, case.keys["replayer"].public_pem(), PAYLOAD_TYPE)
    statement = parse_statement(payload)
    leaf = gather(case.log.publish(), case.call).call
    assert statement.predicate_type == REPLAY
    assert statement.subjects == ((case.call, sha256(leaf.entry.raw)), ("package", case.package.digest))
    assert statement.predicate["verdict"] == BIT_EXACT
    assert statement.predicate["rows"][0]["input"] == "matches its commitment"


def test_the_page_of_a_report_loads_nothing_and_escapes_everything(case: ToyCase) -> None:
    result = replay_toy(case, Elsewhere("bucket", 8))
    predicate = make_predicate(result, time=CREATED)
    predicate["rows"][0]["label"] = "<script>alert(1)</script>"
    predicate["changes"] = [{"what": "<b>", "recorded": "&", "now": '"'}]
    page = render_report(predicate).decode()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "within bound" in page


def test_a_replay_entry_says_which_report(case: ToyCase) -> None:
    from pellucid.testing.evidence import record_replay

    digest, report = record_replay(case, replay_toy(case, ToyIsolated()))
    entry = parse_entry(case.log.entries[-1])
    assert entry.type == "replay"
    assert entry.data == {"call": case.call, "verdict": BIT_EXACT, "report": digest}
    assert sha256(report) == digest


def test_keys_of_the_toy_are_new_every_time() -> None:
    assert make_key().public_pem() != make_key().public_pem()
