"""Small whole packages for tests: signed, qualified and approved as real ones are, without a build."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pellucid.core import canonical, strict_yaml
from pellucid.core.approval import Approval, approval_statement
from pellucid.core.dsse import sign_bundle
from pellucid.core.manifest import make_manifest
from pellucid.core.model_signing import file_digests, root_digest, sign_package
from pellucid.core.package import PackageFiles
from pellucid.core.statement import PAYLOAD_TYPE, QUALIFICATION, make_statement
from pellucid.core.tensor import Tensor, TensorSpec
from pellucid.core.trust import TrustRoot
from pellucid.errors import BuildError
from pellucid.ports import BuildLog, Built

CREATED: Final = "2026-11-30T16:40:14.000000000Z"
ENVIRONMENT: Final[dict[str, Any]] = {
    "backend": "fake", "fake": "1.2.3",
    "device": {"kind": "cpu", "name": "AMD EPYC", "architecture": "x86_64", "isa": ["avx2", "fma"]},
}  # fmt: skip
ENGINE: Final = b"fake engine: the same bits for the same input"


class MemorySigner:
    """A P-256 key that lives in memory."""

    algorithm = "ecdsa-p256"

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    def public_pem(self) -> bytes:
        return self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message, ec.ECDSA(hashes.SHA256()))


class Workshop:
    """Keys of every role, and packages signed with them.

    Attributes:
        trust: Believes exactly these keys.
    """

    def __init__(self) -> None:
        self.builder, self.qualifier, self.approver = MemorySigner(), MemorySigner(), MemorySigner()
        roles = {"builder": self.builder, "qualifier": self.qualifier, "approver": self.approver}
        self.trust = TrustRoot("", {role: (signer.public_pem(),) for role, signer in roles.items()})

    def package(
        self,
        version: str = "1.0.0",
        *,
        name: str = "toy",
        recipe: Mapping[str, Any] | None = None,
        extra: Mapping[str, bytes] | None = None,
        qualified: bool = True,
    ) -> PackageFiles:
        """A signed package with golden inputs, and by default a qualification that passed."""
        folder = f"{name}-v{version}-fake1.2-cpu"
        files = unsigned_files(name, version, folder, recipe or {}, extra or {})
        files["model.sig"] = sign_package(files, folder, self.builder)
        package = PackageFiles(folder, files)
        return self.qualify(package) if qualified else package

    def resign(self, package: PackageFiles, changes: Mapping[str, bytes | None]) -> PackageFiles:
        """The package with files changed (``None`` removes) and an honest new ``model.sig``; its
        manifest stays as it was unless it is among the changes."""
        files = changed(package, changes)
        files["model.sig"] = sign_package(files, package.name, self.builder)
        return PackageFiles(package.name, files)

    def qualify(
        self,
        package: PackageFiles,
        *,
        label: str = "invariant",
        passed: bool = True,
        environment: Mapping[str, Any] = ENVIRONMENT,
        name: str = "qualification",
        signer: MemorySigner | None = None,
    ) -> PackageFiles:
        """The package with a qualification beside it."""
        predicate = {
            "accuracy": {"passed": passed, "samples": 10, "findings": []},
            "variance": {"label": label}, "environment": dict(environment), "qualified": CREATED,
        }  # fmt: skip
        payload = make_statement([(package.name, digest_of(package))], QUALIFICATION, predicate)
        raw = sign_bundle(PAYLOAD_TYPE, payload, signer or self.qualifier)
        return attached(package, name, raw)

    def approve(
        self,
        package: PackageFiles,
        kind: str = "release",
        *,
        role: str = "ml-engineer",
        rolls_back_from: str | None = None,
        expires: str | None = None,
        signer: MemorySigner | None = None,
        **changes: Any,
    ) -> PackageFiles:
        """The package with an approval beside it; ``changes`` replace fields of the approval."""
        manifest = canonical.decode(package.files["manifest.json"])
        approval = Approval(
            kind, manifest["name"], manifest["version"], digest_of(package), role, "a reason", CREATED,
            expires, rolls_back_from,
        )  # fmt: skip
        payload = approval_statement(replace(approval, **changes), package.name)
        raw = sign_bundle(PAYLOAD_TYPE, payload, signer or self.approver)
        return attached(package, f"approval-{kind}-{role}", raw)


def unsigned_files(
    name: str, version: str, folder: str, recipe: Mapping[str, Any], extra: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Files of a small package with their manifest."""
    effective = {
        "name": name, "version": version, "backend": "fake", "target": "cpu", "precision": "fp32",
        "tf32": False, "serve_level": "portable", "threads": 1, "buckets": [1, 4], "commitment": "salted",
    } | dict(recipe)  # fmt: skip
    files: dict[str, bytes] = {
        "engine/model.fake": ENGINE,
        "recipe.yaml": strict_yaml.dump(effective),
        "meaning.json": canonical.encode({"decision": {}, "description": "doubles its input"}),
        "environment.json": canonical.encode(ENVIRONMENT),
        "golden/golden.json": canonical.encode(golden([1.0, -2.5])),
        "build.log.jsonl": b'{"message":"built"}\n',
        **extra,
    }
    files["manifest.json"] = make_manifest(
        folder=folder, name=name, version=version, previous=None, created=CREATED, backend="fake",
        target="cpu", files=files,
    )  # fmt: skip
    return files


def golden(values: Sequence[float]) -> dict[str, Any]:
    """Golden cases of the fake engine for single values."""
    session = FakeSession()
    cases = []
    for value in values:
        inputs = [float_tensor("x", value)]
        outputs = session.infer(inputs)
        recorded = {"inputs": [_wire(t) for t in inputs], "outputs": [_wire(t) for t in outputs]}
        cases.append({"bucket": 1, **recorded})
    return {"cases": cases}


def _wire(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape),
        "data": base64.b64encode(tensor.data).decode(),
    }  # fmt: skip


def float_tensor(name: str, value: float) -> Tensor:
    """FP32 ``[1, 1]``."""
    return Tensor(name, "FP32", (1, 1), struct.pack("<f", value))


def digest_of(package: PackageFiles) -> str:
    """Package digest, computed from the files."""
    return root_digest(file_digests(package.files))


def changed(package: PackageFiles, changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Files with some replaced, added, or (``None``) removed."""
    files = dict(package.files)
    for path, data in changes.items():
        if data is None:
            files.pop(path, None)
        else:
            files[path] = data
    return files


def attached(package: PackageFiles, name: str, raw: bytes) -> PackageFiles:
    """The package with one more attestation."""
    return PackageFiles(package.name, {**package.files, f"attestations/{name}.sigstore.json": raw})


class FakeSession:
    """Doubles every FP32 element; ``factor`` makes a session that gives other bits."""

    inputs = (TensorSpec("x", "FP32", (-1, 1)),)
    outputs = (TensorSpec("y", "FP32", (-1, 1)),)

    def __init__(self, factor: float = 2.0) -> None:
        self.factor, self.closed = factor, False

    def infer(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        (tensor,) = tensors
        count = len(tensor.data) // 4
        values = struct.unpack(f"<{count}f", tensor.data)
        data = struct.pack(f"<{count}f", *[value * self.factor for value in values])
        return [Tensor("y", "FP32", tensor.shape, data)]

    def describe(self) -> dict[str, Any]:
        return {"threads": 1}

    def close(self) -> None:
        self.closed = True


class FakeBackend:
    """Opens only the engine it knows, and remembers which bytes it was given."""

    name = "fake"

    def __init__(
        self, session: FakeSession | None = None, environment: Mapping[str, Any] = ENVIRONMENT
    ) -> None:
        self.session, self._environment = session or FakeSession(), dict(environment)
        self.opened: list[bytes] = []

    def build(self, recipe: Mapping[str, Any], model: bytes, log: BuildLog) -> Built:
        raise BuildError("fake backend: expected never to build, got asked to")

    def open(self, engine: bytes, recipe: Mapping[str, Any]) -> FakeSession:
        self.opened.append(engine)
        if not engine.startswith(b"fake engine"):
            raise BuildError("fake backend: expected its engine, got other bytes")
        return self.session

    def environment(self) -> dict[str, Any]:
        return dict(self._environment)
