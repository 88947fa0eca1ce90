"""Versions, approvals, metadata, attestation files: small documents, closed and ordered."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from pellucid.core import canonical
from pellucid.core.approval import Approval, approval_statement, parse_approval
from pellucid.core.metadata import FIELDS, make_metadata, parse_metadata
from pellucid.core.package import signed_paths
from pellucid.core.statement import APPROVAL, parse_statement
from pellucid.core.version import parse_range, parse_version
from pellucid.errors import FormatError

ASCENDING = [
    "0", "0.0.1", "0.1", "0.9.9", "1-alpha", "1.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2",
    "1.0.0-beta.11", "1.0.0-rc.1", "1", "1.0.0.1", "1.0.1", "1.2.3", "1.2.10", "1.10", "2", "10.0.0",
]  # fmt: skip


def test_versions_have_one_order():
    versions = [parse_version(text) for text in ASCENDING]
    for (a, one), (b, two) in itertools.product(enumerate(versions), repeat=2):
        assert (one < two, one == two, one > two) == (a < b, a == b, a > b)
    assert parse_version("1.2") == parse_version("1.2.0.0")
    assert hash(parse_version("1.2")) == hash(parse_version("1.2.0"))


@pytest.mark.parametrize(
    "text",
    ["", "v1", "1.", ".1", "01", "1.02", "1.2.3.4.5", "1.0-", "1.0-01", "1.0-a..b", "1.0+b", "1.0-ä", "1 ",
     "1\n", "٣", "1.0.0-" + "a" * 41, "9" * 10, None, 1, 1.0, "1_0"],
)  # fmt: skip
def test_what_is_no_version_is_refused(text: object):
    with pytest.raises(FormatError, match=r"expected (numbers|pre-release)"):
        parse_version(text)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("8.6", ["8.6", "8.6.1", "8.6-rc.1"], ["8.60", "8", "8.7", "18.6"]),
        (">=1.2, <2", ["1.2", "1.27.0", "1.9.9+cpu", "1.5.dev3"], ["1.1", "2", "2.0.0", "", "abc"]),
        ("==1.0", ["1.0.0", "1"], ["1.0.1"]),
        ("!=1.0", ["1.0.1"], ["1"]),
        ("> 1", ["1.0.1"], ["1"]),
    ],
)
def test_ranges(text: str, inside: list[str], outside: list[str]):
    wanted = parse_range(text)
    assert [v for v in inside if not wanted.allows(v)] == []
    assert [v for v in outside if wanted.allows(v)] == []


@pytest.mark.parametrize("text", ["", ">=", ">=x", ",", "1,", "~1", "=1", ",".join([">1"] * 9), "*"])
def test_what_is_no_range_is_refused(text: str):
    with pytest.raises(FormatError):
        parse_range(text)


GOOD = Approval(
    "rollback",
    "toy",
    "1.0.0",
    "sha256:" + "0" * 64,
    "sre",
    "why",
    "2026-11-30T16:40:14.000000000Z",
    None,
    "1.2.0",
)


def test_an_approval_round_trips_as_a_statement():
    statement = parse_statement(approval_statement(GOOD, "toy-v1.0.0-x-cpu"))
    assert statement.predicate_type == APPROVAL
    assert statement.subjects == (("toy-v1.0.0-x-cpu", GOOD.package),)
    assert parse_approval(statement.predicate) == GOOD


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "maybe"}, {"role": "SRE"}, {"role": ""}, {"reason": " "}, {"reason": "x" * 1001},
        {"approved": "now"}, {"expires": "2020-01-01T00:00:00Z"}, {"expires": 5}, {"version": "v1"},
        {"rolls_back_from": None}, {"rolls_back_from": "1.0.0"}, {"rolls_back_from": "0.9"},
        {"kind": "release"}, {"name": 1},
    ],
    ids=str,
)  # fmt: skip
def test_an_approval_that_says_too_little_is_refused(change: dict):
    with pytest.raises(FormatError):
        approval_statement(dataclasses.replace(GOOD, **change), "toy")


def test_an_approval_is_closed():
    predicate = parse_statement(approval_statement(GOOD, "toy")).predicate
    for spoiled in (predicate | {"also": 1}, {k: v for k, v in predicate.items() if k != "role"}):
        with pytest.raises(FormatError, match="exactly its keys"):
            parse_approval(spoiled)


VALUES = {
    "build_timestamp": "2026-11-30T16:40:14.000000000Z", "input_onnx_hash": "sha256:" + "0" * 64,
    "output_engine_hash": "sha256:" + "1" * 64, "builder_config.fp16_mode": False,
    "builder_config.int8_mode": False, "builder_config.max_batch_size": 32,
    "builder_config.dynamic_shapes": True, "fused_layers": 3, "quantized_ops_count": 0,
    "peak_memory_usage": 1000, "accuracy_metrics.top1_acc": "0.74", "commit": "abc",
}  # fmt: skip
NULL = (
    "tensorrt_image", "calibration_dataset_hash", "builder_config.max_workspace_size", "gpu", "driver",
    "accuracy_metrics.psnr_db",
)  # fmt: skip
REASONS = dict.fromkeys(NULL, "not on this backend")


def test_metadata_has_every_field_auditors_ask_for():
    document = parse_metadata(make_metadata(VALUES, REASONS))
    assert set(document) == {*FIELDS, "null_reasons"}
    assert document["builder_config"]["max_workspace_size"] is None
    assert document["accuracy_metrics"] == {"top1_acc": "0.74", "psnr_db": None}


@pytest.mark.parametrize(
    ("values", "reasons"),
    [
        ({}, {"gpu": None}), ({"gpu": "A100"}, {}), ({"commit": None}, {}), ({"fused_layers": "3"}, {}),
        ({"fused_layers": True}, {}), ({"builder_config.fp16_mode": 1}, {}), ({"unknown": 1}, {}),
        ({"input_onnx_hash": "abc"}, {}), ({"build_timestamp": "today"}, {}), ({}, {"gpu": " "}),
        ({"accuracy_metrics.top1_acc": 0.74}, {}), ({}, {"driver": "x" * 401}),
    ],
    ids=str,
)  # fmt: skip
def test_metadata_is_null_only_with_a_reason_and_typed(values: dict, reasons: dict):
    merged = {k: v for k, v in (REASONS | reasons).items() if v is not None}
    with pytest.raises(FormatError):
        make_metadata(VALUES | values, merged)


def test_metadata_refuses_twins_of_a_reason():
    document = canonical.decode(make_metadata(VALUES, REASONS))
    document["null_reasons"].append(document["null_reasons"][0])
    with pytest.raises(FormatError, match="at most once"):
        parse_metadata(canonical.encode(document))


def test_the_signing_order_is_by_path_components():
    assert signed_paths(["a-b", "a/b", "model.sig", "attestations/x.sigstore.json", "a"]) == [
        "a",
        "a/b",
        "a-b",
    ]
