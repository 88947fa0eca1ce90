"""The published schemas describe real documents, and refuse what our parsers refuse."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from pellucid.app.ledger import open_ledger
from pellucid.core.entry import TYPES, Writer
from pellucid.core.expand import expand
from pellucid.core.metadata import parse_metadata
from pellucid.core.package import PackageFiles
from pellucid.core.policy import DEFAULT_POLICY, History, NodeFacts, parse_policy
from pellucid.core.record import Batch, Call, Context, Row
from pellucid.errors import PellucidError
from pellucid.guardian.admit import Guardian
from pellucid.guardian.open import open_package
from pellucid.testing.packages import FakeBackend, Workshop
from pellucid.testing.site import make_site

SCHEMAS = Path(__file__).resolve().parents[2] / "spec" / "schemas"
NAMES = ("entry", "manifest", "meaning", "metadata", "policy")


def schema(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text()))


def errors(name: str, document: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}"[:300] for error in schema(name).iter_errors(document)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory):
    return make_site(tmp_path_factory.mktemp("schemas") / "site")


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_schema_and_all_are_here(name: str):
    document = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    Draft202012Validator.check_schema(document)
    assert document["$schema"].endswith("2020-12/schema")
    assert {path.name.partition(".")[0] for path in SCHEMAS.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", ["manifest", "metadata", "meaning"])
def test_documents_of_a_built_package(site, name: str):
    files = open_package(next(site.packages_folder.glob("*.tar.gz"))).files
    assert errors(name, json.loads(files[f"{name}.json"])) == []


def test_entries_of_a_real_ledger(site):
    with contextlib.closing(open_ledger(site)) as ledger:
        raws = list(ledger.reader.entries(0, ledger.reader.size()))
    seen = set()
    for raw in raws:
        document = json.loads(raw)
        seen.add(document["type"])
        assert errors("entry", document) == []
    assert {"build", "package", "qualification"} <= seen


def _call(n: int, rows: int, outcome: str = "answered") -> Call:
    output = b"\x02" * 32 if outcome == "answered" else b""
    return Call(
        n,
        1,
        outcome,
        None if output else "tensor",
        1,
        2,
        (1, 2, 3, 4),
        0 if output else -1,
        8 if output else 0,
        tuple(Row(b"\x01" * 32, output, "granted", "0.9") for _ in range(rows)),
        ((rows, 3),),
        (12, 8),
        b"\x03" * 32,
        {"caller": "someone", "subject": "person"},
        None,
    )


def test_calls_and_batches():
    digests = dict.fromkeys(("package", "engine", "policy", "config", "environment"), "sha256:" + "0" * 64)
    context = Context(1, {"model": "toy", "version": "1.0.0", "precision": "fp32"} | digests)
    records = [
        _call(1, 1),
        _call(2, 40),
        _call(3, 0, "refused"),
        _call(4, 2, "unresolved"),
        Batch(1, 1, 8, 9, 5, (_call(5, 2), _call(6, 1))),
        Batch(2, 1, 256, 9, 5, (_call(7, 100), _call(8, 100))),
    ]
    formed = [
        entry
        for record in records
        for entry in expand(
            record,
            writer=Writer("node/1/0"),
            contexts={1: context},
            subject_keys=lambda subject: b"\x04" * 32,
        )
    ]
    assert [entry.type for entry in formed].count("batch") == 2
    for entry in formed:
        assert errors("entry", json.loads(entry.entry)) == []


def test_loads_and_refusals():
    shop, seen = Workshop(), []

    class Events:
        def event(self, kind: str, data: dict, personal=None) -> str:
            envelope = {
                "specversion": "1.0",
                "id": "node/door-1/e1",
                "source": "pellucid:node",
                "type": kind,
                "time": "2026-11-30T16:40:14.000000000Z",
                "datacontenttype": "application/json",
                "data": data,
            }
            seen.append(kind)
            assert errors("entry", envelope) == []
            return "node/door-1/e1"

    guardian = Guardian(
        policy=parse_policy(DEFAULT_POLICY.encode()),
        trust=shop.trust,
        backend_for=lambda name: FakeBackend(),
        recorder=Events(),
        history=lambda name: History(),
        node=lambda environment, engines: NodeFacts(environment, sinks=("stdout",)),
    )
    guardian.admit(shop.package())
    for refused in (shop.package(qualified=False), PackageFiles("toy", {})):
        with pytest.raises(PellucidError):
            guardian.admit(refused)
    assert seen == ["load", "load.refused", "load.refused"]


def test_the_schema_knows_every_entry_type():
    assert set(schema("entry").schema["properties"]["type"]["enum"]) == TYPES


@pytest.mark.parametrize(
    "text",
    [
        DEFAULT_POLICY,
        "{}",
        "runtime: {name: tensorrt-runtime, version: '8.6'}",
        "devices: [{type: cpu}]",
        "devices: [{type: gpu, vendor: nvidia, model: A100, partitioning: {mode: mig, instances: "
        "[{id: 0, profile: 1g.10gb, max_engines: 2}]}}]",
    ],
)
def test_policies_that_both_accept(text: str):
    parse_policy(text.encode())
    assert errors("policy", yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "unknown: 1",
        "security: {unknown: 1}",
        "security: {require_signed_engine: false}",
        "security: {allowed_precision_modes: [fp99]}",
        "security: {nonfinite: maybe}",
        "security: {required_approvals: ['A B']}",
        "security: {allowed_packages: [{digests: [x]}]}",
        "runtime: {version: 8.6}",
        "audit: {fields: [password]}",
        "audit: {log_destination: x}",
        "devices: [{type: tpu}]",
        "devices: [{type: gpu, partitioning: {mode: mig}}]",
        "devices: [{type: gpu, partitioning: {mode: none, instances: [{id: 0, profile: p}]}}]",
        "devices: [{type: gpu, partitioning: {mode: mig, instances: [{id: 0, profile: p, max_engines: 0}]}}]",
        "name: ''",
    ],
)
def test_policies_that_both_refuse(text: str):
    with pytest.raises(PellucidError):
        parse_policy(text.encode())
    assert errors("policy", yaml.safe_load(text))


@pytest.mark.parametrize(
    "change",
    [
        {"gpu": 1},
        {"extra": 1},
        {"fused_layers": "3"},
        {"input_onnx_hash": "abc"},
        {"null_reasons": [{"field": "nothing", "reason": "x"}]},
        {"builder_config": {}},
    ],
    ids=str,
)
def test_metadata_that_both_refuse(site, change: dict):
    files = open_package(next(site.packages_folder.glob("*.tar.gz"))).files
    document = json.loads(files["metadata.json"]) | change
    with pytest.raises(PellucidError):
        parse_metadata(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    assert errors("metadata", document)
