"""The order of checks: what is believed, what is ignored with a finding, what is refused."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest

from pellucid.core import canonical
from pellucid.core.dsse import sign_bundle
from pellucid.core.manifest import make_manifest, parse_manifest
from pellucid.core.model_signing import file_digests, root_digest, sign_package, signing_payload
from pellucid.core.package import PackageFiles
from pellucid.core.qualification import matching_qualification
from pellucid.core.statement import PAYLOAD_TYPE, make_statement
from pellucid.core.trust import TrustedPackage, TrustRoot, verify_package
from pellucid.errors import (
    DigestMismatchError,
    FormatError,
    PackageError,
    SignatureError,
    VerificationError,
)
from pellucid.testing.packages import (
    CREATED,
    ENVIRONMENT,
    MemorySigner,
    Workshop,
    attached,
    changed,
    digest_of,
)


@pytest.fixture(scope="module")
def shop() -> Workshop:
    return Workshop()


@pytest.fixture(scope="module")
def package(shop: Workshop) -> PackageFiles:
    return shop.package()


def test_a_good_package_is_trusted_whole(shop: Workshop, package: PackageFiles):
    trusted = verify_package(package, shop.trust)
    assert (trusted.name, trusted.version, trusted.folder) == ("toy", "1.0.0", package.name)
    assert trusted.digest == digest_of(package)
    assert trusted.engine == package.files["engine/model.fake"]
    assert trusted.recipe["buckets"] == [1, 4]
    assert trusted.label_variance == "invariant"
    assert trusted.qualification["accuracy"]["passed"]
    assert trusted.findings == ()


def test_only_verify_package_makes_a_trusted_package(shop: Workshop, package: PackageFiles):
    trusted = verify_package(package, shop.trust)
    with pytest.raises(TypeError, match="only verify_package"):
        dataclasses.replace(trusted, engine=b"another", seal=object())
    fields = {f.name: getattr(trusted, f.name) for f in dataclasses.fields(TrustedPackage)}
    with pytest.raises(TypeError):
        TrustedPackage(**fields, seal=None)
    with pytest.raises(TypeError):
        trusted.files["engine/model.fake"] = b"x"


def test_files_changed_after_verification_have_no_effect(shop: Workshop, package: PackageFiles):
    mutable = dict(package.files)
    trusted = verify_package(PackageFiles(package.name, mutable), shop.trust)
    mutable["engine/model.fake"] = b"another engine"
    assert trusted.engine == package.files["engine/model.fake"] == trusted.files["engine/model.fake"]


def test_the_digest_does_not_depend_on_attestations(shop: Workshop):
    bare = shop.package(qualified=False)
    qualified = shop.qualify(bare)
    assert digest_of(bare) == digest_of(qualified)
    assert verify_package(bare, shop.trust).label_variance == "untested"


@pytest.mark.parametrize("role", ["builder", "qualifier", "approver"])
def test_another_key_signs_nothing(package: PackageFiles, shop: Workshop, role: str):
    keys = {**shop.trust.keys, role: (MemorySigner().public_pem(),)}
    if role == "builder":
        with pytest.raises(SignatureError, match="verifies with none"):
            verify_package(package, TrustRoot("", keys))
    else:
        approved = shop.approve(package)
        trusted = verify_package(approved, TrustRoot("", keys))
        assert len(trusted.findings) == 1
        assert "verifies with none" in trusted.findings[0].got
        assert (trusted.qualification is None) == (role == "qualifier")
        assert (trusted.approvals == ()) == (role == "approver")


def test_without_a_builder_key_nothing_is_believed(package: PackageFiles):
    with pytest.raises(SignatureError, match="expected a trusted key"):
        verify_package(package, TrustRoot("", {}))


def test_several_keys_of_one_role(package: PackageFiles, shop: Workshop):
    keys = {**shop.trust.keys, "builder": (MemorySigner().public_pem(), *shop.trust.of("builder"))}
    assert verify_package(package, TrustRoot("", keys)).signer == verify_package(package, shop.trust).signer


@pytest.mark.parametrize("path", ["model.sig", "manifest.json", "recipe.yaml"])
def test_a_package_without_a_needed_file(shop: Workshop, package: PackageFiles, path: str):
    with pytest.raises(PackageError, match=f"expected '?{path}"):
        verify_package(PackageFiles(package.name, changed(package, {path: None})), shop.trust)
    if path == "recipe.yaml":
        with pytest.raises(PackageError, match="expected 'recipe"):
            verify_package(shop.resign(package, {path: None}), shop.trust)


def test_manifest_and_signature_must_say_the_same(shop: Workshop, package: PackageFiles):
    for changes, kind, reason in (
        ({"extra.bin": b"x"}, PackageError, "only the files of manifest.json"),
        ({"meaning.json": None}, PackageError, "expected 'meaning.json'"),
        ({"meaning.json": b"{}"}, PackageError, "meaning.json: expected"),
        ({"build.log.jsonl": package.files["build.log.jsonl"][::-1]}, DigestMismatchError, "build.log.jsonl"),
    ):
        with pytest.raises(kind, match=reason):
            verify_package(shop.resign(package, changes), shop.trust)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{}", b"[]", b"null", b'{"files":[]}', b"\xff", b'{"a":1,"a":2}', b"[" * 10_000],
)
def test_a_signed_manifest_that_is_none_is_evidence_that_does_not_hold(
    shop: Workshop, package: PackageFiles, raw: bytes
):
    with pytest.raises(VerificationError):
        verify_package(shop.resign(package, {"manifest.json": raw}), shop.trust)


def test_recipe_and_manifest_must_name_the_same_model(shop: Workshop):
    with pytest.raises(PackageError, match="got '9\\.9\\.9'"):
        verify_package(shop.package(recipe={"version": "9.9.9"}), shop.trust)


def test_one_engine_and_no_more(shop: Workshop):
    with pytest.raises(PackageError, match="one file below engine/, got 2"):
        verify_package(shop.package(extra={"engine/second.fake": b"x"}), shop.trust)


@pytest.mark.parametrize(
    "change",
    [
        {"precision": 32}, {"serve_level": "fast"}, {"threads": 0}, {"threads": "1"}, {"threads": True},
        {"buckets": 8}, {"buckets": "8"}, {"buckets": [0]}, {"buckets": [1] * 65}, {"pinned_bucket": "8"},
        {"commitment": "none"}, {"nonfinite": "maybe"}, {"batch_delay_us": -1}, {"batch_delay_us": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_signed_recipe_that_nobody_could_serve_is_refused(shop: Workshop, change: dict):
    with pytest.raises(PackageError, match=next(iter(change))):
        verify_package(shop.package(recipe=change), shop.trust)


def test_a_reader_keeps_what_a_later_recipe_says(shop: Workshop):
    trusted = verify_package(shop.package(recipe={"speculation": {"depth": 3}}), shop.trust)
    assert trusted.recipe["speculation"] == {"depth": 3}


@pytest.mark.parametrize("device", [None, 5, {}, {"isa": 5}, {"isa": [1]}, {"isa": "avx2"}], ids=str)
def test_an_odd_environment_differs_and_nothing_else(shop: Workshop, device: object):
    files = shop.qualify(shop.package(qualified=False), environment={"backend": 5, "device": device})
    chosen, found = matching_qualification(verify_package(files, shop.trust), ENVIRONMENT)
    assert chosen is not None
    assert found


# -- attestations ---------------------------------------------------------------------------------


def test_attestations_of_another_package_have_no_voice(shop: Workshop, package: PackageFiles):
    other = shop.approve(shop.package("2.0.0"))
    stolen = {path: other.files[path] for path in other.files if path.startswith("attestations/")}
    mixed = PackageFiles(package.name, {**shop.package(qualified=False).files, **stolen})
    trusted = verify_package(mixed, shop.trust)
    assert trusted.qualification is None
    assert trusted.approvals == ()
    assert len(trusted.findings) == 2
    assert all("about" in finding.got for finding in trusted.findings)
    assert not set(stolen) & set(trusted.files)


def test_an_approval_signed_by_the_qualifier_is_ignored(shop: Workshop, package: PackageFiles):
    trusted = verify_package(shop.approve(package, signer=shop.qualifier), shop.trust)
    assert trusted.approvals == ()
    assert len(trusted.findings) == 1


@pytest.mark.parametrize("change", [{"name": "other"}, {"version": "1.0.1"}])
def test_an_approval_that_names_another_version_is_ignored(
    shop: Workshop, package: PackageFiles, change: dict
):
    trusted = verify_package(shop.approve(package, **change), shop.trust)
    assert trusted.approvals == ()
    assert "approval of this package" in trusted.findings[0].got


def test_unknown_predicates_and_rubbish_are_ignored_with_a_finding(shop: Workshop, package: PackageFiles):
    digest = digest_of(package)
    unknown = make_statement([(package.name, digest)], "https://example.com/other/v1", {})
    package = attached(package, "other", sign_bundle(PAYLOAD_TYPE, unknown, shop.qualifier))
    package = attached(package, "rubbish", b"\x00\xff")
    package = attached(package, "json", b'{"a":1,"a":2}')
    trusted = verify_package(package, shop.trust)
    assert sorted(f.rule.rpartition("/")[2] for f in trusted.findings) == [
        "json.sigstore.json", "other.sigstore.json", "rubbish.sigstore.json",
    ]  # fmt: skip
    assert trusted.qualification is not None


def test_the_worst_label_counts_when_several_measured(shop: Workshop, package: PackageFiles):
    both = shop.qualify(package, label="variant", name="second")
    assert verify_package(both, shop.trust).label_variance == "variant"


def test_bytes_around_an_attestations_signature_cannot_change_unseen(shop: Workshop, package: PackageFiles):
    path = "attestations/qualification.sigstore.json"
    bundle = json.loads(package.files[path])
    bundle["verificationMaterial"]["publicKey"]["hint"] = "another"
    trusted = verify_package(
        PackageFiles(package.name, {**package.files, path: canonical.encode_trusted(bundle)}), shop.trust
    )
    assert trusted.qualification is None
    assert "another spelling" in trusted.findings[0].got


@pytest.mark.parametrize(
    "path", ["attestations/x.json", "attestations/a/b.sigstore.json", "attestations/.sigstore.json"]
)
def test_only_named_bundles_lie_beside(shop: Workshop, package: PackageFiles, path: str):
    with pytest.raises(PackageError, match="attestations/NAME"):
        verify_package(PackageFiles(package.name, {**package.files, path: b"{}"}), shop.trust)


def test_attestations_are_bounded(shop: Workshop, package: PackageFiles):
    with pytest.raises(PackageError, match="at most 4,194,304 bytes"):
        verify_package(attached(package, "big", bytes(4 * 2**20 + 1)), shop.trust)
    many = {f"attestations/a{n}.sigstore.json": b"x" for n in range(257)}
    with pytest.raises(PackageError, match="at most 256 attestations"):
        verify_package(PackageFiles(package.name, {**package.files, **many}), shop.trust)


# -- model.sig ------------------------------------------------------------------------------------


def test_the_signed_statement_is_the_one_stock_verifiers_read(package: PackageFiles):
    digests = file_digests(package.files)
    payload = json.loads(signing_payload("toy", digests))
    names = [resource["name"] for resource in payload["predicate"]["resources"]]
    assert names == sorted(names, key=lambda name: name.split("/"))
    assert payload["predicate"]["serialization"]["ignore_paths"] == ["attestations"]
    assert payload["subject"][0]["digest"]["sha256"] == root_digest(digests)[7:]


def _statement(package: PackageFiles, edit) -> bytes:
    payload = json.loads(signing_payload(package.name, file_digests(package.files)))
    edit(payload)
    return canonical.encode_trusted(payload)


EDITS = {
    "other root": (lambda p: p["subject"][0]["digest"].update(sha256="0" * 64), "expected the subject"),
    "two subjects": (lambda p: p["subject"].append(copy.deepcopy(p["subject"][0])), "expected the subject"),
    "other folder": (lambda p: p["subject"][0].update(name="x"), "package folder"),
    "other method": (lambda p: p["predicate"]["serialization"].update(method="shards"), "serialization"),
    "ignores more": (
        lambda p: p["predicate"]["serialization"].update(ignore_paths=["attestations", "engine"]),
        "serialization",
    ),
    "missing file": (lambda p: p["predicate"]["resources"].pop(), "only signed files"),
    "file twice": (
        lambda p: p["predicate"]["resources"].append(p["predicate"]["resources"][-1]),
        "each file once",
    ),
    "other order": (lambda p: p["predicate"]["resources"].reverse(), "signing order"),
    "no resources": (lambda p: p["predicate"].pop("resources"), "a list of resources"),
    "other algorithm": (lambda p: p["predicate"]["resources"][0].update(algorithm="blake2b"), "sha256"),
    "other predicate": (lambda p: p.update(predicateType="https://example.com"), "model_signing"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_statement_that_says_less_is_refused_even_when_signed(
    shop: Workshop, package: PackageFiles, edit: str
):
    change, reason = EDITS[edit]
    raw = sign_bundle(PAYLOAD_TYPE, _statement(package, change), shop.builder)
    with pytest.raises(VerificationError, match=reason):
        verify_package(PackageFiles(package.name, {**package.files, "model.sig": raw}), shop.trust)


def test_ed25519_cannot_sign_packages(package: PackageFiles, tmp_path):
    from pellucid.keys.file import FileKey

    key = FileKey.generate(tmp_path / "k", "ed25519")
    with pytest.raises(SignatureError, match="P-256"):
        sign_package(package.files, package.name, key)


# -- manifest -------------------------------------------------------------------------------------


def _manifest(**changes: object) -> bytes:
    document = canonical.decode(
        make_manifest(
            folder="toy-v1.0.0-x-cpu", name="toy", version="1.0.0", previous="0.9.0", created=CREATED,
            backend="onnxruntime", target="cpu", files={"engine/m": b"1", "a-b": b"2", "a/b": b"3"},
        )
    )  # fmt: skip
    for key, value in changes.items():
        if value is None and key != "previous":
            document.pop(key)
        else:
            document[key] = value
    return canonical.encode(document)


def test_a_manifest_round_trips_in_signing_order():
    manifest = parse_manifest(_manifest())
    assert [file.path for file in manifest.files] == ["a/b", "a-b", "engine/m"]
    assert [file.role for file in manifest.files] == ["other", "other", "engine"]
    assert manifest.previous == "0.9.0"


FILE = {"path": "a", "size": 1, "digest": "sha256:" + "0" * 64, "role": "other"}


@pytest.mark.parametrize(
    "changes",
    [
        {"name": None}, {"unknown": 1}, {"format": "pellucid-package/2"}, {"version": "v1"},
        {"version": "1.0.1"}, {"previous": "old"}, {"created": "yesterday"}, {"folder": "a/b"},
        {"folder": "toy"}, {"backend": ""}, {"backend": "a b"}, {"files": []}, {"files": {}},
        {"files": [FILE | {"size": -1}]}, {"files": [FILE | {"size": True}]},
        {"files": [FILE | {"size": "1"}]}, {"files": [FILE | {"digest": "sha256:0"}]},
        {"files": [FILE | {"role": "engine"}]}, {"files": [FILE | {"path": "../x"}]},
        {"files": [FILE | {"path": 1}]}, {"files": [FILE, FILE]}, {"files": [FILE, FILE | {"path": "A"}]},
        {"files": [FILE | {"path": "b"}, FILE]}, {"files": [FILE | {"extra": 1}]},
        {"files": [FILE | {"path": "model.sig"}]}, {"files": [FILE | {"path": "manifest.json"}]},
        {"files": [FILE | {"path": "attestations/a.sigstore.json"}]}, {"files": [1]},
    ],
    ids=str,
)  # fmt: skip
def test_a_manifest_is_closed(changes: dict):
    with pytest.raises((FormatError, PackageError)):
        parse_manifest(_manifest(**changes))
