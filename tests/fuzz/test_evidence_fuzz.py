"""Hostile bundles: the verifier ends with one of its four exit codes, in bounded time, whatever it is fed."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.core import canonical
from pellucid.core.bundle import read_container, seal, write_container
from pellucid.errors import PellucidError
from pellucid.evidence import verify
from pellucid.evidence.check import check_bundle, run_verifier
from pellucid.testing.evidence import (
    CREATED,
    ToyCase,
    ToyIsolated,
    export_toy,
    make_case,
    record_replay,
    replay_toy,
)

OWN = ("manifest.json", "manifest.sigstore.json")


@pytest.fixture(scope="module")
def case() -> ToyCase:
    made = make_case()
    made.reports = dict([record_replay(made, replay_toy(made, ToyIsolated()))])
    return made


@pytest.fixture(scope="module")
def members(case: ToyCase) -> dict[str, bytes]:
    whole = read_container(export_toy(case, reports=case.reports, inputs=case.rows))
    return {k: v for k, v in whole.items() if k not in (*OWN, "index.html", "verify.py")}


def status(raw: bytes, tmp_path: Path, case: ToyCase) -> int:
    (tmp_path / "b.zip").write_bytes(raw)
    trust = case.write_trust(tmp_path / "trust")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return verify.main([str(tmp_path / "b.zip"), "--trust", str(trust), "--json"])


@given(st.binary(max_size=400))
def test_any_bytes(case: ToyCase, tmp_path: Path, raw: bytes) -> None:
    assert status(raw, tmp_path, case) == 3
    assert status(b"PK\x03\x04" + raw, tmp_path, case) == 3


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def replace_somewhere(document: Any, value: Any, path: list[int]) -> Any:
    """The document with one value, found by walking ``path``, replaced."""
    if not path or not isinstance(document, dict | list) or not document:
        return value
    keys = sorted(document) if isinstance(document, dict) else range(len(document))
    key = list(keys)[path[0] % len(document)]
    changed = dict(document) if isinstance(document, dict) else list(document)
    changed[key] = replace_somewhere(document[key], value, path[1:])  # type: ignore[index]
    return changed


@settings(max_examples=150)
@given(st.data())
def test_any_well_signed_nonsense(case: ToyCase, members: dict[str, bytes], data: st.DataObject) -> None:
    """Signed by the right exporter, canonical, and of any form: still a clean result and no crash."""
    name = data.draw(st.sampled_from([name for name in members if name.endswith(".json")]))
    value = data.draw(json_values)
    path = data.draw(st.lists(st.integers(0, 20), max_size=6))
    changed = replace_somewhere(json.loads(members[name]), value, path)
    text = json.dumps(changed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    raw = text.encode("utf-8", "surrogatepass")
    report = run_verifier(
        seal({**members, name: raw}, created=CREATED, signer=case.keys["exporter"]), case.trust
    )
    assert report.status in (0, 3)
    if raw != members[name] and name.startswith(("entries/", "packages/")):
        assert report.status == 3


@settings(max_examples=60)
@given(st.data())
def test_any_nonsense_in_a_signed_statement(
    case: ToyCase, members: dict[str, bytes], data: st.DataObject
) -> None:
    """A replayer who is trusted and talks nonsense is refused, not believed and not fatal."""
    from pellucid.core.digest import sha256
    from pellucid.core.dsse import sign_bundle
    from pellucid.core.statement import PAYLOAD_TYPE

    payload = data.draw(json_values.map(lambda v: json.dumps(v).encode()) | st.binary(max_size=60))
    report = sign_bundle(PAYLOAD_TYPE, payload, case.keys["replayer"])
    name = f"replays/{sha256(report)[7:]}.sigstore.json"
    kept = {k: v for k, v in members.items() if not k.startswith("replays/")}
    raw = seal({**kept, name: report}, created=CREATED, signer=case.keys["exporter"])
    assert run_verifier(raw, case.trust).status == 3


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000, b'{"a":' * 50_000, b"1" * 100_000, b'"' + b"\\u0000" * 1000, b"\xff\xfe", b"",
        b'{"kind":"case","kind":"case"}', b'{"kind": "case"}', b"NaN", b"1.5", b'"\\ud800"',
    ],
)  # fmt: skip
def test_hostile_json_in_a_signed_member(case: ToyCase, members: dict[str, bytes], content: bytes) -> None:
    for name in ("case.json", "openings/000000000003.json", "inputs/000000000003.json"):
        raw = seal({**members, name: content}, created=CREATED, signer=case.keys["exporter"])
        assert run_verifier(raw, case.trust).status == 3, name


def test_text_from_a_bundle_cannot_move_the_readers_cursor() -> None:
    report = verify.Report()
    report.hold("\x1b[2J\u202e evil \ud800")
    report.failures.append({"place": "a\nHOLDS", "reason": "\r"})
    text = verify.format_text(report)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\nHOLDS" not in text
    text.encode()


def test_a_bundle_beyond_the_limit_is_not_read(
    case: ToyCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "BUNDLE_MAX", 10)
    assert status(write_container({"a": b"1"}), tmp_path, case) == 2


@given(st.binary(max_size=120))
def test_the_products_check_raises_only_the_tree(case: ToyCase, raw: bytes) -> None:
    with pytest.raises(PellucidError):
        check_bundle(raw, case.trust)


def test_canonical_json_is_the_same_on_both_sides() -> None:
    value = {"b": [1, -5, True, None, '\x00\x1f\u2028é\U0001f600"\\/'], "a": {"x": 2**53 - 1}}
    assert verify.canonical(value) == canonical.encode(value)
