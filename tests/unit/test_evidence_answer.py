"""The regulator's four, the story, the pages: what people read about a call."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from pellucid.core import canonical
from pellucid.core.calibration import MANIFEST_PATH, CalibrationSet, Sample, make_manifest
from pellucid.core.entry import Opening
from pellucid.errors import DigestMismatchError, VerificationError
from pellucid.evidence.answer import NOT_SAID, answer_four
from pellucid.evidence.chain import Chain, gather, verify_answers
from pellucid.evidence.check import check_bundle
from pellucid.evidence.report_html import answer_rows, render_case_page, render_case_report
from pellucid.evidence.story import tell_story
from pellucid.testing.evidence import (
    CREATED,
    ToyCase,
    ToyIsolated,
    export_toy,
    make_case,
    record_replay,
    replay_toy,
)


@pytest.fixture
def case() -> ToyCase:
    return make_case()


def chain_of(case: ToyCase, call: str | None = None) -> Chain:
    return gather(case.log.publish(), call or case.call)


def package_like(case: ToyCase, **changes: Any) -> Any:
    names = ("digest", "engine_digest", "metadata", "environment", "recipe", "precision", "signer")
    values = {name: getattr(case.package, name) for name in names}
    return cast(Any, SimpleNamespace(**(values | {"qualifications": (1,), "approvals": ()} | changes)))


def test_four_answers_of_a_floating_point_engine(case: ToyCase) -> None:
    four = answer_four(chain_of(case), case.package)
    assert four["image"] == {"digest": None, "reason": "built outside a container"}
    assert four["precision"] == {"value": "FP32", "tf32": False, "quantised_operations": 0}
    assert four["calibration"]["digest"] is None
    assert four["calibration"]["reason"] == "FP32: none needed, no value was quantised"
    assert four["signature"]["package"] == case.package.digest
    assert four["signature"]["check"].startswith("holds")
    assert [name for name, _ in answer_rows(four)] == [
        "image digest",
        "precision",
        "calibration",
        "signature",
    ]


def test_an_image_is_named_by_its_digest(case: ToyCase) -> None:
    digest = "sha256:" + "1" * 64
    for changes in ({"environment": {"image": digest}}, {"metadata": {"tensorrt_image": digest}}):
        image = answer_four(chain_of(case), package_like(case, **changes))["image"]
        assert image == {"digest": digest, "reason": None}


def test_why_there_is_no_image_comes_from_the_environment_first(case: ToyCase) -> None:
    environment = {"image": None, "null_reasons": [{"field": "image", "reason": "no container"}]}
    four = answer_four(chain_of(case), package_like(case, environment=environment))
    assert four["image"]["reason"] == "no container"
    four = answer_four(chain_of(case), package_like(case, environment={}, metadata={}))
    assert four["image"]["reason"] == NOT_SAID


def test_calibration_of_a_quantised_engine(case: ToyCase) -> None:
    digest, times = "sha256:" + "2" * 64, {"from": "2026-01-01T00:00:00Z", "to": "2026-03-31T00:00:00Z"}
    chosen = {"rule": "stratified", "count": 1, "seed": 4, "slice": "ink"}
    found = CalibrationSet(digest, 9, (), chosen, (Sample(3, digest),), (), times, None, None)
    metadata = {"calibration_dataset_hash": digest, "quantized_ops_count": 3}

    def answered(found: CalibrationSet) -> dict[str, Any]:
        files = {MANIFEST_PATH: canonical.encode(make_manifest(found))}
        package = package_like(case, precision="int8", recipe={}, metadata=metadata, files=files)
        return answer_four(chain_of(case), package)

    four = answered(found)
    assert four["calibration"]["digest"] == digest
    assert four["precision"] == {"value": "INT8", "tf32": None, "quantised_operations": 3}
    rows = dict(answer_rows(four))
    assert rows["precision"] == "INT8; 3 of the engine's layers compute quantised"
    period = f"{times['from']} to {times['to']}"
    assert rows["calibration"] == f"stratified by ink, 1 of 9 rows, seed 4, {period}, set {digest}"
    rows = dict(answer_rows(answered(structs.replace(found, times=None))))
    assert "times not said" in rows["calibration"]


def test_a_quantised_source_is_never_called_unquantised(case: ToyCase) -> None:
    package = package_like(case, metadata={"quantized_ops_count": 2})
    rows = dict(answer_rows(answer_four(chain_of(case), package)))
    assert "2 of the engine's layers compute quantised" in rows["precision"]
    assert "2 quantised engine layers came with the source model" in rows["calibration"]
    assert "none needed" not in rows["calibration"]


def test_another_package_gives_no_answers(case: ToyCase) -> None:
    with pytest.raises(DigestMismatchError):
        answer_four(chain_of(case), package_like(case, digest="sha256:" + "3" * 64))


def test_the_story_goes_from_package_to_replay_in_order(case: ToyCase) -> None:
    record_replay(case, replay_toy(case, ToyIsolated()))
    case.log.event("erasure", {"call": case.call, "rule": "GDPR 17"})
    told = tell_story(chain_of(case))
    assert [s["text"].split(" ")[0] for s in told] == ["credit", "The", "credit", "Replayed:", "Values"]
    assert [s["index"] for s in told] == sorted(s["index"] for s in told)
    call = told[2]["text"]
    assert "answered granted (confidence 0.500000), refused" in call
    assert "shared a bucket of 4 with 1 other call, in slot 0" in call
    assert told[2]["time"] == "2026-11-30 00:53:30 UTC"


def test_a_call_that_ran_alone_says_so(case: ToyCase) -> None:
    assert "ran alone in a bucket of 1" in tell_story(chain_of(case, case.alone))[-1]["text"]


@pytest.mark.parametrize(
    ("outcome", "said"),
    [("refused", "refused at the door"), ("failed", "model failed"), ("unresolved", "is not known")],
)
def test_calls_without_an_answer_have_a_story_too(case: ToyCase, outcome: str, said: str) -> None:
    chain = chain_of(case)
    entry = chain.call.entry
    data = entry.data | {"outcome": outcome, "error": "tensor"}
    call = dataclasses.replace(chain.call, entry=dataclasses.replace(entry, data=data))
    told = tell_story(dataclasses.replace(chain, call=call))
    assert any(said in s["text"] and "tensor" in s["text"] for s in told)


def test_erased_answers_are_told_as_such(case: ToyCase) -> None:
    del case.log.vault.held[case.call]
    assert "can no longer be opened" in tell_story(chain_of(case))[-1]["text"]


@pytest.mark.parametrize("rows", [1, 20])
def test_an_answer_changed_in_the_vault_is_not_told(rows: int) -> None:
    case = make_case(rows_alone=rows)
    chain = verify_answers(chain_of(case, case.alone))
    for spoil in ({"label": "other"}, {"confidence": "0.999999"}, {"digest": b"d" * 32}):
        spoiled = tuple(spoiled_output(o, spoil) if o.kind == "output" else o for o in chain.openings)
        with pytest.raises(VerificationError, match="row 0: expected the answer that was recorded"):
            verify_answers(dataclasses.replace(chain, openings=spoiled))
    assert verify_answers(dataclasses.replace(chain, openings=()))


def spoiled_output(opening: Opening, change: dict[str, Any]) -> Opening:
    values = {"label": opening.label, "confidence": opening.confidence, "digest": opening.digest} | change
    return Opening("output", opening.row, opening.key, opening.value, **values)


def test_pages_load_nothing_and_escape_everything(case: ToyCase) -> None:
    """A caller's words stand in openings and entries; none of them becomes markup."""
    held = case.log.vault.held[case.call]
    evil = "<img src=x onerror=alert(1)>"
    case.log.vault.held[case.call] = tuple(
        type(o)(o.kind, o.row, o.key, o.value, evil, "<b>", o.digest) if o.kind == "output" else o
        for o in held
    )
    chain = chain_of(case)
    four = answer_four(chain, case.package)
    pages = [
        render_case_page(chain, four, {}, created=CREATED).decode(),
        render_case_report(chain, four, [evil], created=CREATED).decode(),
    ]
    for page in pages:
        assert "<img" not in page
        assert "&lt;img src=x" in page
        assert "default-src 'none'" in page
        for outside in ("http://", "https://", 'src="', "@import", "url("):
            assert outside not in page, outside
    assert "<script>" in pages[0]
    assert "<script" not in pages[1]


def test_the_report_of_a_case_lists_what_was_checked(case: ToyCase) -> None:
    checked = check_bundle(export_toy(case), case.trust)
    page = render_case_report(chain_of(case), None, checked.holds, created=CREATED).decode()
    assert page.count("<b>holds</b>") == len(checked.holds)
    assert "inclusion proof" in page
