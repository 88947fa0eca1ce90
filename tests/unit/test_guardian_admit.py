"""Admission: verify, judge, open the verified bytes, golden inputs, record; both answers are entries."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from pellucid.core import canonical
from pellucid.core.archive import write_archive
from pellucid.core.package import PackageFiles
from pellucid.core.policy import DEFAULT_POLICY, History, NodeFacts, parse_policy
from pellucid.errors import (
    BuildError,
    DigestMismatchError,
    DiskFullError,
    FormatError,
    PackageError,
    PolicyDeniedError,
    SignatureError,
    UnknownSchemeError,
    VerificationError,
)
from pellucid.guardian.admit import FINDINGS_MAX, Guardian
from pellucid.guardian.golden import judge_golden, parse_golden
from pellucid.guardian.open import open_package
from pellucid.testing.packages import (
    ENVIRONMENT,
    FakeBackend,
    FakeSession,
    Workshop,
    attached,
    digest_of,
    golden,
)


class Events:
    """Remembers events; canonical as the ledger demands."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict]] = []

    def event(self, kind: str, data: dict, personal=None) -> str:
        assert len(canonical.encode(data)) < 60_000
        self.seen.append((kind, data))
        return f"node/door-1/e{len(self.seen)}"


@pytest.fixture(scope="module")
def shop() -> Workshop:
    return Workshop()


@pytest.fixture
def events() -> Events:
    return Events()


def make_guardian(
    shop: Workshop, events, backend: FakeBackend | None = None, *, highest=None, policy=DEFAULT_POLICY
):
    opened = backend or FakeBackend()

    def backend_for(name: str) -> FakeBackend:
        if name != "fake":
            raise UnknownSchemeError(f"backend {name!r}: expected fake, got another")
        return opened

    return Guardian(
        policy=parse_policy(policy.encode()), trust=shop.trust, backend_for=backend_for, recorder=events,
        history=lambda name: History(highest), node=lambda env, engines: NodeFacts(env, sinks=("stdout",)),
    )  # fmt: skip


def test_an_admitted_package_is_open_recorded_and_described(shop: Workshop, events: Events):
    backend, package = FakeBackend(), shop.package()
    admitted = make_guardian(shop, events, backend).admit(package)
    assert backend.opened == [package.files["engine/model.fake"]]
    assert admitted.key == "node/door-1/e1"
    ((kind, data),) = events.seen
    assert kind == "load"
    assert data["verdict"] == "allowed"
    assert (data["model"], data["version"], data["package"]) == ("toy", "1.0.0", digest_of(package))
    assert data["buckets"] == [1, 4]
    assert data["session"] == {"threads": 1}
    assert {f["rule"] for f in data["findings"]} >= {"golden_inputs", "security.environment_match"}
    assert admitted.facts == {
        "model": "toy", "version": "1.0.0", "package": digest_of(package), "policy": data["policy"],
        "engine": data["engine"], "environment": data["environment"], "precision": "fp32", "threads": 1,
        "device": "AMD EPYC", "commitment": "salted", "label_variance": "invariant",
    }  # fmt: skip
    assert not admitted.session.closed


@pytest.mark.parametrize("form", ["archive", "folder"])
def test_a_file_replaced_between_verify_and_load_has_no_effect(
    shop: Workshop, events: Events, tmp_path: Path, form: str
):
    package = shop.package()
    engine = package.files["engine/model.fake"]
    path = tmp_path / (package.name if form == "folder" else "toy.tar.gz")
    if form == "archive":
        path.write_bytes(write_archive(package.name, package.files))
    for name, data in package.files.items() if form == "folder" else ():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)

    class Replacing(FakeBackend):
        def environment(self) -> dict:
            # after the signature was checked, before the engine is opened
            (path / "engine/model.fake" if form == "folder" else path).write_bytes(b"fake engine: evil")
            return super().environment()

    backend = Replacing()
    make_guardian(shop, events, backend).admit(open_package(path))
    assert backend.opened == [engine]
    with pytest.raises(VerificationError):
        make_guardian(shop, events).admit(open_package(path))


def test_a_broken_package_is_refused_and_recorded(shop: Workshop, events: Events):
    backend, package = FakeBackend(), shop.package()
    broken = PackageFiles(package.name, {**package.files, "engine/model.fake": b"fake engine: evil"})
    with pytest.raises(DigestMismatchError, match="expected sha256"):
        make_guardian(shop, events, backend).admit(broken)
    ((kind, data),) = events.seen
    assert (kind, data["verdict"], backend.opened) == ("load.refused", "refused", [])
    assert "digest_mismatch" in data["findings"][0]["got"]
    with pytest.raises(SignatureError):
        make_guardian(Workshop(), events, backend).admit(package)
    assert len(events.seen) == 2


@pytest.mark.parametrize("name", ["x\ud800", "n" * 10_000, "../\x00\n"])
def test_a_hostile_folder_name_is_recorded_as_bounded_text(shop: Workshop, events: Events, name: str):
    with pytest.raises(PackageError):
        make_guardian(shop, events).admit(PackageFiles(name, shop.package().files))
    assert events.seen[0][0] == "load.refused"
    assert len(events.seen[0][1]["folder"]) <= 200


def test_what_the_policy_refuses_is_named_recorded_and_never_opened(shop: Workshop, events: Events):
    backend = FakeBackend(environment=ENVIRONMENT | {"fake": "9"})
    with pytest.raises(PolicyDeniedError) as caught:
        make_guardian(shop, events, backend, highest="2.0.0").admit(
            shop.package(recipe={"precision": "int8"})
        )
    text = caught.value.message
    assert text.startswith("package toy:1.0.0 refused by policy 'default' (sha256:")
    assert "3 of " in text
    for rule in ("allowed_precision_modes", "rollback_protection", "environment_match"):
        assert f"security.{rule}: expected" in text
    ((kind, data),) = events.seen
    assert (kind, backend.opened) == ("load.refused", [])
    assert [f["passed"] for f in data["findings"][:3]] == [False, False, False]


def test_a_golden_difference_refuses_names_the_place_and_closes_the_session(shop: Workshop, events: Events):
    session = FakeSession(factor=2.0000002)
    with pytest.raises(PolicyDeniedError, match="bucket 1, case 0, output 'y': element 0 is 2"):
        make_guardian(shop, events, FakeBackend(session)).admit(shop.package())
    assert session.closed
    ((kind, data),) = events.seen
    assert kind == "load.refused"
    assert data["findings"][0]["rule"] == "golden_inputs"


def test_elsewhere_a_golden_difference_is_reported_when_the_policy_lets_the_environment_pass(
    shop: Workshop, events: Events
):
    policy = DEFAULT_POLICY.replace("environment_match: strict", "environment_match: report")
    backend = FakeBackend(FakeSession(factor=2.0000002), ENVIRONMENT | {"fake": "9"})
    admitted = make_guardian(shop, events, backend, policy=policy).admit(shop.package())
    failed = {f.rule for f in admitted.verdict.findings if not f.passed}
    assert failed == {"golden_inputs", "security.environment_match"}
    # no label was measured here, so serving must not batch it
    assert admitted.label_variance == admitted.facts["label_variance"] == "untested"


def test_a_package_without_golden_inputs_is_refused(shop: Workshop, events: Events):
    package = shop.package(extra={"golden/golden.json": canonical.encode({})})
    with pytest.raises(PolicyDeniedError, match="without golden inputs"):
        make_guardian(shop, events).admit(package)


def test_an_engine_that_does_not_open_is_recorded(shop: Workshop, events: Events):
    with pytest.raises(BuildError):
        make_guardian(shop, events).admit(shop.package(extra={"engine/model.fake": b"rubbish"}))
    assert events.seen[0][0] == "load.refused"
    assert "open" in {f["rule"] for f in events.seen[0][1]["findings"]}


def test_without_an_entry_nothing_is_admitted(shop: Workshop):
    class Full:
        def event(self, kind: str, data: dict, personal=None) -> str:
            raise DiskFullError("journal: expected space, got none")

    session = FakeSession()
    with pytest.raises(DiskFullError):
        make_guardian(shop, Full(), FakeBackend(session)).admit(shop.package())
    assert session.closed


def test_a_flood_of_ignored_attestations_cannot_outgrow_an_entry(shop: Workshop, events: Events):
    package = shop.package()
    for number in range(100):
        package = attached(package, f"{'n' * 60}{number}", b"x" * 100)
    make_guardian(shop, events).admit(package)
    data = events.seen[0][1]
    assert len(data["findings"]) == FINDINGS_MAX
    assert data["findings_left_out"] > 50


def _case(**changes: object) -> dict:
    document = golden([1.0])
    document["cases"][0] |= changes
    return document


TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": base64.b64encode(bytes(4)).decode()}


@pytest.mark.parametrize(
    "document",
    [
        {"cases": []}, {"cases": {}}, {"cases": [1]}, _case(bucket="1"), _case(inputs=[]), _case(inputs=[1]),
        _case(outputs=[TENSOR | {"shape": [2, 1]}]), _case(outputs=[TENSOR | {"datatype": "FP31"}]),
        _case(outputs=[TENSOR | {"data": "?"}]), _case(outputs=[{"name": "y"}]), {"cases": [{}] * 257},
        _case(outputs=[TENSOR | {"shape": "11"}]), _case(outputs=[TENSOR | {"datatype": []}]),
    ],
    ids=str,
)  # fmt: skip
def test_golden_that_is_none_refuses(document: dict):
    with pytest.raises(Exception, match="expected"):
        parse_golden(document)
    assert judge_golden(FakeSession(), document, severity="warn")[0].refuses


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (TENSOR | {"name": "z"}, "outputs"),
        (TENSOR | {"name": "y", "datatype": "INT32"}, "INT32 [1, 1] was recorded"),
        (
            TENSOR | {"name": "y", "data": base64.b64encode(b"\x00\x00\x00\x80").decode()},
            "element 0 is 0.0 where -0.0",
        ),
    ],
    ids=["name", "datatype", "negative zero"],
)
def test_golden_differences_are_told_in_words(output: dict, reason: str):
    document = _case(outputs=[output], inputs=[TENSOR])
    (finding,) = judge_golden(FakeSession(), document, severity="refuse")
    assert finding.refuses
    assert reason in finding.got


def test_equal_values_with_other_bits_differ():
    nan, other = b"\x00\x00\xc0\x7f", b"\x01\x00\xc0\x7f"
    document = _case(
        inputs=[TENSOR | {"data": base64.b64encode(nan).decode()}],
        outputs=[TENSOR | {"name": "y", "data": base64.b64encode(other).decode()}],
    )
    (finding,) = judge_golden(FakeSession(), document, severity="refuse")
    assert "NaN payload" in finding.got


def test_golden_cases_are_read_back_exactly():
    with pytest.raises(FormatError):
        parse_golden({})
    (case,) = parse_golden(golden([0.1]))
    assert (case.bucket, case.inputs[0].name, case.outputs[0].name) == (1, "x", "y")
