"""Write the package and policy vectors again: ``python vectors/package/generate.py [FOLDER]``.

Everything is fixed: inputs, test-only keys, order; archives are stored, not deflated, so that no zlib
has a say. ECDSA has random nonces, so a committed archive is kept as long as it still verifies.
"""

from __future__ import annotations

import base64
import itertools
import json
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

from pellucid.core import canonical, strict_yaml
from pellucid.core.approval import Approval, approval_statement
from pellucid.core.archive import GZIP_HEADER, read_archive, tar_header
from pellucid.core.dsse import sign_bundle
from pellucid.core.manifest import make_manifest
from pellucid.core.model_signing import file_digests, root_digest, sign_package
from pellucid.core.package import signed_paths
from pellucid.core.policy import DEFAULT_POLICY, History, NodeFacts, evaluate, parse_policy
from pellucid.core.statement import PAYLOAD_TYPE, QUALIFICATION, make_statement
from pellucid.core.times import parse_time
from pellucid.core.trust import TrustRoot, verify_package
from pellucid.core.version import parse_version
from pellucid.errors import PellucidError
from pellucid.keys.file import FileKey

HERE = Path(__file__).resolve().parent
Case = dict[str, Any]
TOP = "toy-v1.2.0-fake1.0-cpu"
SEVERAL = "runtime: {name: x, version: '2'}\nsecurity: {allowed_precision_modes: [int8]}"
REPORTED = "security: {environment_match: report}"
NOW = "2026-11-30T18:00:00.000000000Z"
MADE = "2026-11-30T16:40:14.000000000Z"
ENVIRONMENT = {
    "backend": "fake", "fake": "1.0.0",
    "device": {"kind": "cpu", "name": "any", "architecture": "x86_64", "isa": ["avx2"]},
}  # fmt: skip


def key(name: str) -> FileKey:
    return FileKey.from_pem((HERE.parent / "keys" / f"test-only-{name}.key").read_bytes())


def stored(tar: bytes) -> str:
    """base64 of one gzip member with one stored block."""
    size = len(tar)
    block = b"\x01" + struct.pack("<HH", size, size ^ 0xFFFF) + tar
    raw = GZIP_HEADER + block + struct.pack("<II", zlib.crc32(tar), size)
    return base64.b64encode(raw).decode()


def patched(header: bytes, offset: int, value: bytes) -> bytes:
    """A header with one field replaced and an honest checksum."""
    header = header[:offset] + value + header[offset + len(value) :]
    header = header[:148] + b" " * 8 + header[156:]
    return header[:148] + b"%06o\x00 " % sum(header) + header[156:]


def named(path: bytes, data: bytes = b"x") -> bytes:
    return member(patched(tar_header("a", len(data)), 0, path + bytes(100 - len(path))), data)


def member(header: bytes, data: bytes = b"x") -> bytes:
    return header + data + bytes(-len(data) % 512)


def tar(*members: bytes, end: bytes = bytes(1024)) -> bytes:
    return b"".join(members) + end


def packed(files: dict[str, bytes], top: str = TOP) -> str:
    paths = sorted(files, key=str.encode)
    return stored(tar(*(member(tar_header(f"{top}/{p}", len(files[p])), files[p]) for p in paths)))


# -- archives -------------------------------------------------------------------------------------

GOOD = member(tar_header(f"{TOP}/a", 1))
HEAD = tar_header(f"{TOP}/a", 1)
LINK = tar_header(f"{TOP}/a", 0)


def zoo() -> dict[str, str]:
    top = TOP.encode()
    kinds = {"hard_link": b"1", "symlink": b"2", "character_device": b"3", "block_device": b"4",
             "folder": b"5", "fifo": b"6", "pax": b"x", "pax_global": b"g", "gnu_long_name": b"L",
             "sparse": b"S", "old_style": b"\x00"}  # fmt: skip
    names = {
        "parent": top + b"/../x", "absolute": b"/x", "dot": top + b"/./x", "empty_segment": top + b"//x",
        "dot_git": top + b"/.git/x", "dot_git_upper": top + b"/.GIT/x", "gitignore": top + b"/.gitignore",
        "backslash": top + b"/a\\b", "colon": top + b"/C:x", "not_utf8": top + b"/\xff",
        "nul": top + b"/a\x00b", "newline": top + b"/a\nb", "decomposed": top + b"/e\xcc\x81",
        "bidi": top + "/a\u202eb".encode(), "trailing_dot": top + b"/a.", "trailing_space": top + b"/a ",
        "no_folder": b"a", "too_deep": top + b"/a/b/c/d/e/f/g/h/i",
    }  # fmt: skip
    animals = {name: tar(member(patched(LINK, 156, kind + b"b"), b"")) for name, kind in kinds.items()}
    animals |= {name: tar(named(path)) for name, path in names.items()}
    modes = {"set_uid": b"0004644", "set_gid": b"0002644", "sticky": b"0001644", "executable": b"0000755"}
    animals |= {name: tar(member(patched(HEAD, 100, mode))) for name, mode in modes.items()}
    animals |= {
        "twice": tar(GOOD, GOOD),
        "case_twins": tar(named(top + b"/A"), named(top + b"/a")),
        "width_twins": tar(named(top + b"/a"), named(top + "/\uff41".encode())),
        "file_and_folder": tar(named(top + b"/a"), named(top + b"/a/b")),
        "unsorted": tar(named(top + b"/b"), GOOD),
        "two_folders": tar(GOOD, named(b"x/a")),
        "owner": tar(member(patched(HEAD, 108, b"0000001"))),
        "time": tar(member(patched(HEAD, 136, b"00000000001"))),
        "base_256_size": tar(member(patched(HEAD, 124, b"\x80" + bytes(10) + b"\x01"))),
        "checksum": tar(GOOD[:148] + b"000000\x00 " + GOOD[156:]),
        "dirty_padding": tar(GOOD[:-1] + b"!"),
        "cut_member": tar(tar_header(f"{TOP}/a", 10**6), end=b""),
        "no_end": tar(GOOD, end=b""), "half_end": tar(GOOD, end=bytes(512)),
        "long_end": tar(GOOD, end=bytes(10240)), "hidden_after_end": tar(GOOD, bytes(1024), GOOD),
        "nothing": tar(),
    }  # fmt: skip
    return {name: stored(data) for name, data in animals.items()}


def edges() -> dict[str, str]:
    """Good tar in bad gzip."""
    raw = base64.b64decode(stored(tar(GOOD)))
    bad = {
        "cut": raw[:-9], "cut_trailer": raw[:-1], "trailing_garbage": raw + b"x", "two_members": raw * 2,
        "gzip_time": raw[:4] + b"\x01" + raw[5:], "gzip_name_flag": raw[:3] + b"\x08" + raw[4:],
        "crc": raw[:-8] + bytes(4) + raw[-4:], "length": raw[:-4] + bytes(4), "empty": b"",
    }  # fmt: skip
    return {name: base64.b64encode(data).decode() for name, data in bad.items()}


def read_cases() -> list[Case]:
    files = {"a": b"x", "deep/er/b.json": b"{}", "empty": b"", "block": bytes(512), "\u00e9": b"e"}
    good = {"read": packed(files), "read_long_path": packed({f"{'d' * 90}/{'e' * 99}": b"x"})}
    cases: list[Case] = []
    for name, archive in good.items():
        package = read_archive(base64.b64decode(archive))
        expected = {"folder": package.name, "files": {p: d.hex() for p, d in package.files.items()}}
        cases.append({"name": name, "operation": "read", "archive": archive, "expected": expected})
    bad = {f"zoo_{name}": data for name, data in zoo().items()} | {f"gzip_{n}": d for n, d in edges().items()}
    return cases + [{"name": f"{n}_fail", "operation": "read", "archive": data} for n, data in bad.items()]


# -- digests and versions -------------------------------------------------------------------------


def digest_cases() -> list[Case]:
    files = {"a/b": b"1", "a-b": b"2", "a": b"3", "model.sig": b"no", "attestations/x.sigstore.json": b"no",
             "\u00e9": b"4", "Z": b"5"}  # fmt: skip
    expected = {"order": signed_paths(files), "package": root_digest(file_digests(files))}
    given = {path: data.hex() for path, data in files.items()}
    return [{"name": "digest", "operation": "digest", "files": given, "expected": expected}]


def version_cases() -> list[Case]:
    ordered = ["0", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11",
               "1.0.0-rc.1", "1.0.0", "1.0.0.1", "1.2.9", "1.2.10", "1.10", "2"]  # fmt: skip
    pairs = [(a, b, -1) for a, b in itertools.pairwise(ordered)] + [("1.2", "1.2.0", 0)]
    cases = [
        {"name": f"version_{a}_{b}", "operation": "compare", "a": a, "b": b, "expected": order}
        for a, b, order in pairs
    ]
    assert all((parse_version(a) < parse_version(b)) == (order < 0) for a, b, order in pairs)
    bad = ["", "v1", "01", "1.", "1.2.3.4.5", "1-", "1-01", "1-a..b", "1+build", "1 ", "\u0661"]
    return cases + [
        {"name": f"version_{number}_fail", "operation": "compare", "a": text, "b": "1"}
        for number, text in enumerate(bad)
    ]


# -- whole packages and verdicts ------------------------------------------------------------------


def unsigned(top: str = TOP) -> dict[str, bytes]:
    recipe = {"name": "toy", "version": "1.2.0", "backend": "fake", "target": "cpu", "precision": "fp32",
              "tf32": False, "serve_level": "portable", "threads": 1, "buckets": [1]}  # fmt: skip
    files = {
        "engine/model.fake": b"engine", "recipe.yaml": strict_yaml.dump(recipe),
        "environment.json": canonical.encode(ENVIRONMENT),
    }  # fmt: skip
    files["manifest.json"] = make_manifest(
        folder=top, name="toy", version="1.2.0", previous="1.1.0", created=MADE, backend="fake",
        target="cpu", files=files,
    )  # fmt: skip
    return files


def signed() -> dict[str, bytes]:
    """The package, or the committed one while it is the same but for the nonces of its signatures."""
    files = unsigned()
    try:
        document = json.loads((HERE / "package.json").read_text())
        kept = next(c["archive"] for c in document["cases"] if c["name"] == "verify")
        package = read_archive(base64.b64decode(kept))
        trusted = verify_package(package, trust())
        same = {p: package.files[p] for p in signed_paths(package.files)} == files
        if same and len(trusted.qualifications) + len(trusted.approvals) == 2 and not trusted.findings:
            return dict(package.files)
    except (OSError, ValueError, KeyError, StopIteration, PellucidError):
        pass
    digest = root_digest(file_digests(files))
    predicate = {"accuracy": {"passed": True}, "variance": {"label": "invariant"},
                 "environment": ENVIRONMENT, "qualified": MADE}  # fmt: skip
    qualification = make_statement([(TOP, digest)], QUALIFICATION, predicate)
    approval = Approval(
        "rollback", "toy", "1.2.0", digest, "sre", "why", MADE, "2030-01-01T00:00:00Z", "1.5.0"
    )
    statements = {"qualification": qualification, "approval-rollback-sre": approval_statement(approval, TOP)}
    files["model.sig"] = sign_package(files, TOP, key("builder"))
    # one test key plays both roles: vectors show which role a statement needs, not key ceremony
    for name, statement in statements.items():
        files[f"attestations/{name}.sigstore.json"] = sign_bundle(PAYLOAD_TYPE, statement, key("other"))
    return files


def pems() -> dict[str, str]:
    other = key("other").public_pem().decode()
    return {"builder": key("builder").public_pem().decode(), "qualifier": other, "approver": other}


def trust(**changes: str) -> TrustRoot:
    return TrustRoot("", {role: (pem.encode(),) for role, pem in (pems() | changes).items()})


def verify_cases(files: dict[str, bytes]) -> list[Case]:
    base = {"operation": "verify", "trust": pems()}
    beside = {p: d for p, d in files.items() if p.startswith("attestations/")}
    good = {
        "verify": (files, pems()),
        "verify_without_attestations": ({p: d for p, d in files.items() if p not in beside}, pems()),
        "verify_stranger_qualifies": (files, pems() | {"qualifier": pems()["builder"]}),
    }
    cases = []
    for name, (content, keys) in good.items():
        trusted = verify_package(read_archive(base64.b64decode(packed(content))), trust(**keys))
        expected = {
            "package": trusted.digest, "name": trusted.name, "version": trusted.version,
            "label": trusted.label_variance, "approvals": [a.kind for a in trusted.approvals],
            "ignored": sorted(f.rule.removeprefix("attestation ") for f in trusted.findings),
        }  # fmt: skip
        cases.append(base | {"name": name, "trust": keys, "archive": packed(content), "expected": expected})
    bad = {
        "engine_byte": packed(files | {"engine/model.fake": b"Engine"}),
        "missing_file": packed({p: d for p, d in files.items() if p != "environment.json"}),
        "extra_file": packed(files | {"extra": b""}),
        "extra_attestation_name": packed(files | {"attestations/note.txt": b""}),
        "renamed": packed(files, "toy-v1.2.0-renamed"),
        "unsigned": packed({p: d for p, d in files.items() if p != "model.sig"}),
        "manifest_byte": packed(
            files | {"manifest.json": files["manifest.json"].replace(b"1.1.0", b"1.0.0")}
        ),
        "hint_byte": packed(files | {"model.sig": files["model.sig"].replace(b'"hint":"', b'"hint":"0')}),
    }
    cases += [base | {"name": f"verify_{name}_fail", "archive": data} for name, data in bad.items()]
    keys = pems() | {"builder": pems()["qualifier"]}
    return [*cases, base | {"name": "verify_other_key_fail", "trust": keys, "archive": packed(files)}]


def judge_cases(files: dict[str, bytes]) -> list[Case]:
    node = {"environment": ENVIRONMENT, "sinks": ["stdout"], "now": NOW}
    other = ENVIRONMENT | {"fake": "1.0.1"}
    situations: list[tuple[str, str, Case, str | None]] = [
        ("default", DEFAULT_POLICY, node, None),
        ("older_floor", DEFAULT_POLICY, node, "1.1.9"),
        ("rollback_approved", DEFAULT_POLICY, node, "1.5.0"),
        ("rollback_approval_outdated", DEFAULT_POLICY, node, "1.5.1"),
        ("rollback_approval_expired", DEFAULT_POLICY, node | {"now": "2031-01-01T00:00:00Z"}, "1.5.0"),
        ("environment", DEFAULT_POLICY, node | {"environment": other}, None),
        ("environment_reported", REPORTED, node | {"environment": other}, None),
        ("precision_and_runtime", SEVERAL, node, None),
        ("approvals", "security: {required_approvals: [sre]}", node, None),
        ("names", "security: {allowed_packages: [{name: 'c*'}, {name: toy, versions: '<1.2'}]}", node, None),
        ("log", "audit: {log_destination: 'syslog://x:514'}", node, None),
    ]  # fmt: skip
    package = verify_package(read_archive(base64.b64decode(packed(files))), trust())
    cases = []
    for name, policy, facts, highest in situations:
        seen = NodeFacts(facts["environment"], (), tuple(facts["sinks"]), (), parse_time(facts["now"]))
        verdict = evaluate(parse_policy(policy.encode()), package, seen, History(highest))
        expected = {"allowed": verdict.allowed, "failed": sorted(f.rule for f in verdict.failed)}
        cases.append(
            {"name": f"judge_{name}", "operation": "judge", "policy": policy, "node": facts,
             "highest": highest, "expected": expected}
        )  # fmt: skip
    return cases


def parse_cases() -> list[Case]:
    good = {"empty": "{}", "default": DEFAULT_POLICY}
    cases = [
        {"name": f"parse_{name}", "operation": "parse", "policy": text,
         "expected": parse_policy(text.encode()).effective()}
        for name, text in good.items()
    ]  # fmt: skip
    bad = ["securty: {}", "security: {unknown: 1}", "security: {require_signed_engine: false}",
           "runtime: {version: 8.6}", "a: 1\na: 2", "x: &a 1\ny: *a", "audit: {fields: [password]}",
           "devices: [{type: gpu, partitioning: {mode: mig}}]", "[]", ""]  # fmt: skip
    return cases + [
        {"name": f"parse_{number}_fail", "operation": "parse", "policy": text}
        for number, text in enumerate(bad)
    ]


def write(folder: Path) -> None:
    files = signed()
    package = [*read_cases(), *digest_cases(), *version_cases(), *verify_cases(files)]
    policy = [*parse_cases(), *judge_cases(files)]
    documents = {
        "package": {"about": "archives, digests, versions, packages; spec/package.md", "cases": package},
        "policy": {"about": "policies and verdicts; spec/policy.md", "archive": packed(files),
                   "trust": pems(), "cases": policy},
    }  # fmt: skip
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
