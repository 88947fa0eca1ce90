"""Packages on a real site: built, signed, qualified, found, judged, admitted, approved, by the verbs."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from pellucid import schemes
from pellucid.app.audit import operators_log
from pellucid.app.ledger import open_ledger, record_event
from pellucid.app.load import (
    LOG_SCHEMES,
    admit,
    memory_isolation,
    node_facts,
    opener,
    sign,
    verify,
)
from pellucid.app.packages import history_for
from pellucid.app.sign import attach, sign_folder
from pellucid.app.site import Site, create_site, open_site
from pellucid.cli.main import cli
from pellucid.core.archive import write_archive
from pellucid.core.entry import parse_entry
from pellucid.core.package import PackageFiles
from pellucid.core.policy import AUDIT_FIELDS
from pellucid.errors import (
    KeyRefusedError,
    NotFoundError,
    PellucidError,
    PolicyDeniedError,
    UsageError,
    VerificationError,
)
from pellucid.guardian.open import open_package, read_folder
from pellucid.ports import Query
from pellucid.sinks import ALIASES, FIELDS
from pellucid.testing.packages import digest_of
from pellucid.testing.site import make_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("guardian") / "site")


@pytest.fixture(scope="module")
def archive(site: Site) -> Path:
    return next(site.packages_folder.glob("*.tar.gz"))


@pytest.fixture
def own(site: Site, tmp_path: Path) -> Site:
    """A copy of the site, for tests that change its ledger."""
    return open_site(shutil.copytree(site.root, tmp_path / "own"))


class Door:
    def __init__(self, site: Site) -> None:
        self.site = site

    def event(self, kind: str, data: dict, personal=None) -> str:
        return record_event(self.site, kind, data, personal)


def run(*arguments: object) -> tuple[int, object]:
    """Exit code and JSON output of one verb."""
    result = CliRunner().invoke(cli, [*map(str, arguments), "--json"], standalone_mode=False)
    if isinstance(result.exception, PellucidError):
        return result.exception.exit_code, result.exception.message
    assert result.exception is None, result.exception
    code = result.return_value if isinstance(result.return_value, int) else 0
    return code, json.loads(result.output)


def entries(site: Site, kind: str) -> list[dict]:
    with contextlib.closing(open_ledger(site)) as ledger:
        found = ledger.reader.find(Query(type=kind))
        return [parse_entry(ledger.reader.entry(row.index)).data for row in found]


def test_verify_says_what_the_policy_says(site: Site, archive: Path):
    code, value = run("verify", archive, "--site", site.root)
    assert code == 0
    assert value["allowed"] is True
    assert all(finding["passed"] for finding in value["findings"])
    code, value = run("verify", archive, "--trust", site.trust_folder, "--site", site.root)
    assert code == 0


def test_verify_without_a_site_needs_a_trust_and_judges_only_by_a_policy(
    site: Site, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PELLUCID_SITE", raising=False)
    code, value = run("verify", archive, "--trust", site.trust_folder)
    assert (code, value["allowed"], value["findings"]) == (0, None, [])
    policy = tmp_path / "policy.yaml"
    policy.write_text("security: {allowed_precision_modes: [int8]}")
    code, value = run("verify", archive, "--trust", site.trust_folder, "--policy", policy)
    assert (code, value["allowed"]) == (4, False)
    refused = CliRunner().invoke(cli, ["verify", str(archive)], standalone_mode=False).exception
    assert isinstance(refused, PellucidError)
    assert (refused.exit_code, "--trust DIR" in refused.hint) == (2, True)


def test_verify_refuses_a_changed_byte_and_a_strangers_package(site: Site, archive: Path, tmp_path: Path):
    raw = bytearray(archive.read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / archive.name).write_bytes(raw)
    assert run("verify", tmp_path / archive.name, "--site", site.root)[0] == 3
    stranger = create_site(tmp_path / "stranger", node="other")
    code, message = run("verify", archive, "--trust", stranger.trust_folder, "--site", site.root)
    assert code == 3
    assert "verifies with none" in message
    assert run("verify", tmp_path / "nothing", "--site", site.root)[0] == 2


@pytest.mark.parametrize("verb", ["verify", "inspect"])
def test_people_get_tables(site: Site, archive: Path, verb: str):
    result = CliRunner().invoke(cli, [verb, str(archive), "--site", str(site.root)], standalone_mode=False)
    assert result.exception is None
    assert "credit-v1.0.0" in result.output
    assert "fp32" in result.output


def test_inspect_shows_what_is_inside(site: Site, archive: Path):
    code, value = run("inspect", archive, "--site", site.root)
    assert code == 0
    assert (value["name"], value["version"]) == ("credit", "1.0.0")
    assert value["recipe"]["precision"] == "fp32"
    assert value["qualifications"][0]["passed"]
    assert {file["role"] for file in value["files"]} >= {"engine", "recipe", "facts", "golden", "provenance"}
    assert value["metadata"]["output_engine_hash"] == value["engine"]


def test_the_provenance_is_signed_beside_the_package(archive: Path):
    assert "attestations/provenance.sigstore.json" in open_package(archive).files


def test_packages_are_found_by_digest_name_and_path(site: Site, archive: Path):
    files = open_package(archive)
    for reference in (digest_of(files), "credit:1.0.0", str(archive), archive.name, files.name):
        assert dict(opener(site).open(reference).files) == dict(files.files) or reference == files.name
    for missing in ("sha256:" + "0" * 64, "credit:9.9.9", "nothing"):
        with pytest.raises(NotFoundError):
            opener(site).open(missing)


def test_signing_again_keeps_digest_and_attestations(site: Site, archive: Path):
    before = open_package(archive)
    again = sign_folder(site, site.packages_folder / before.name)
    after = open_package(again.archive)
    assert digest_of(after) == digest_of(before)
    assert set(after.files) == set(before.files)
    assert after.files["attestations/qualification.sigstore.json"] == before.files[
        "attestations/qualification.sigstore.json"
    ]  # fmt: skip
    assert verify(site, archive).verdict.allowed
    assert not list(site.packages_folder.rglob("*.part"))
    assert entries(site, "package")[0]["package"] == digest_of(after)


def spoil(folder: Path, path: str, data: bytes) -> None:
    (folder / path).write_bytes(data)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f: spoil(f, "extra", b"x"), "'extra'"),
        (lambda f: spoil(f, "meaning.json", b"{}"), "meaning"),
        (lambda f: (f / "manifest.json").unlink(), "manifest"),
        (lambda f: spoil(f, "attestations/note", b"x"), "attestations"),
    ],
    ids=["extra", "changed", "no manifest", "rubbish beside"],
)
def test_sign_refuses_a_folder_that_is_not_its_manifest(
    site: Site, archive: Path, tmp_path: Path, change: Callable, reason: str
):
    folder = unpack(open_package(archive), tmp_path)
    change(folder)
    with pytest.raises(VerificationError, match=reason):
        sign(site, folder)


def unpack(package: PackageFiles, base: Path, name: str | None = None) -> Path:
    folder = base / (name or package.name)
    for path, data in package.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def test_a_renamed_folder_is_not_signed(site: Site, archive: Path, tmp_path: Path):
    with pytest.raises(VerificationError, match="package folder"):
        sign(site, unpack(open_package(archive), tmp_path, "other-name"))


def test_an_archive_of_other_bytes_is_not_overwritten(site: Site, archive: Path, tmp_path: Path):
    other = create_site(tmp_path / "s", node="x")
    folder = unpack(open_package(archive), tmp_path)
    package = open_package(archive)
    files = {**package.files, "model.sig": b"{}"}
    (other.packages_folder / archive.name).write_bytes(write_archive(package.name, files))
    with pytest.raises(UsageError, match="new version"):
        sign(other, folder)


def test_attach_works_on_folders_and_refuses_odd_names(archive: Path, tmp_path: Path):
    folder = unpack(open_package(archive), tmp_path)
    attach(folder, "note", b"{}")
    assert read_folder(folder).files["attestations/note.sigstore.json"] == b"{}"
    assert (folder / "attestations/note.sigstore.json").stat().st_mode & 0o777 == 0o644
    for name in ("", "a/b", "../x", "NOTE"):
        with pytest.raises(PellucidError):
            attach(folder, name, b"{}")


def test_admission_history_rollback_and_approval(tmp_path: Path, archive: Path, own: Site):
    """The whole life of a floor: admitted, refused below, lowered by approval, raised again."""
    package = open_package(archive)
    assert history_for(own, "credit").highest is None
    admitted = admit(own, archive, Door(own))
    admitted.session.close()
    assert admitted.label_variance in ("invariant", "bucket-invariant")
    history = history_for(own, "credit")
    assert (history.highest, history.packages) == ("1.0.0", {"1.0.0": frozenset({digest_of(package)})})
    assert history_for(own, "other").highest is None

    # a higher version was admitted later: the same package is now below the floor
    load = entries(own, "load")[0]
    record_event(own, "load", load | {"version": "1.2.0", "package": "sha256:" + "1" * 64})
    with pytest.raises(PolicyDeniedError, match="rollback_protection: expected 1"):
        admit(own, archive, Door(own))
    assert entries(own, "load.refused")[0]["verdict"] == "refused"
    assert run("verify", archive, "--site", own.root)[0] == 4

    copy = tmp_path / archive.name
    copy.write_bytes(archive.read_bytes())
    code, value = run(
        "approve", copy, "--kind", "rollback", "--role", "sre", "--reason", "slow", "--site", own.root
    )  # fmt: skip
    assert (code, value["rolls_back_from"]) == (0, "1.2.0")
    assert entries(own, "approval")[0]["kind"] == "rollback"
    admit(own, copy, Door(own)).session.close()

    # the approval dies with the next higher version
    record_event(own, "load", load | {"version": "1.3.0", "package": "sha256:" + "2" * 64})
    with pytest.raises(PolicyDeniedError, match=r"from 1\.3\.0"):
        admit(own, copy, Door(own))

    # an index that was lost hides nothing
    with contextlib.closing(open_ledger(own)) as ledger:
        ledger.index.clear()
    assert history_for(own, "credit").highest == "1.3.0"


def test_a_rollback_needs_something_to_roll_back_from(tmp_path: Path, archive: Path, site: Site):
    other = create_site(tmp_path / "s", node="x")
    for name in ("builder.pem", "qualifier.pem"):
        (other.trust_folder / name).write_bytes((site.trust_folder / name).read_bytes())
    copy = tmp_path / archive.name
    copy.write_bytes(archive.read_bytes())
    arguments = ("approve", copy, "--role", "sre", "--reason", "x", "--site", other.root)
    code, message = run(*arguments, "--kind", "rollback")
    assert code == 2
    assert "to roll back from" in message
    code, value = run(*arguments)
    assert (code, value["kind"]) == (0, "release")
    assert len(verify(other, copy).package.approvals) == 1


def test_keys(site: Site, tmp_path: Path):
    code, rows = run("keys", "list", "--site", site.root)
    assert code == 0
    assert {row["role"]: row["trusted"] for row in rows} == dict.fromkeys(site.config.keys, "yes")
    code, value = run("keys", "show", "builder", "--site", site.root)
    assert value["public"] == (site.trust_folder / "builder.pem").read_text()
    assert "PRIVATE" not in json.dumps(value)
    code, value = run("keys", "show", "log", "--site", site.root)
    assert value["vkey"] == (site.trust_folder / "log.vkey").read_text().strip()
    code, value = run("keys", "new", tmp_path / "new.key")
    assert (tmp_path / "new.key").stat().st_mode & 0o777 == 0o600
    assert value["algorithm"] == "ecdsa-p256"
    assert run("keys", "new", tmp_path / "new.key")[0] == 2


def test_a_key_that_others_can_read_is_shown_as_refused(tmp_path: Path):
    site = create_site(tmp_path / "s", node="x")
    (site.root / "keys" / "builder.key").chmod(0o644)
    with pytest.raises(KeyRefusedError):
        open_site(site.root).signer("builder")
    _, rows = run("keys", "list", "--site", site.root)
    assert {row["role"] for row in rows if row["trusted"] != "yes"} == {"builder"}


def test_what_a_node_says_of_itself(tmp_path: Path):
    node = node_facts({"device": {"kind": "cpu", "name": "Intel(R) Xeon(R)"}}, engines=2)
    assert (node.devices[0].vendor, node.devices[0].engines) == ("Intel", 2)
    assert node_facts({}).devices == ()
    assert memory_isolation(tmp_path / "nothing") == memory_isolation(tmp_path) == ()
    (tmp_path / "smmu3.0x1").touch()
    assert memory_isolation(tmp_path) == ("smmu_enabled", "iommu_enabled")


def test_the_policys_audit_section_becomes_a_sink_with_its_fields(own: Site):
    assert set(AUDIT_FIELDS) == {*FIELDS, *ALIASES}
    assert set(LOG_SCHEMES) == set(schemes.SINKS)
    policy = own.root / "policy.yaml"
    policy.write_text("audit: {log_destination: 'stdout:', fields: [timestamp, model_name]}")
    assert operators_log(own) == ["stdout:?fields=timestamp,model_name"]
    schemes.from_uri("sink", operators_log(own)[0]).close()
    policy.write_text("audit: {enable_logging: false}")
    assert operators_log(own) == []
