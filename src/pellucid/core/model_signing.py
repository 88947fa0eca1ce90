"""OpenSSF Model Signing v1.0: the signature that stock verifiers accept.

Method ``files``, SHA-256, nothing ignored but ``attestations``. The root digest (SHA-256 over the
files' raw digests in listed order) is the package digest everywhere. Source: spec/package.md,
section 5.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pellucid.core.digest import Data, format_digest, parse_digest, sha256
from pellucid.core.dsse import encode_bundle, parse_bundle, sign_bundle, verify_bundle
from pellucid.core.package import ATTESTATIONS, SIGNATURE, signed_paths
from pellucid.core.signature import SigningKey, key_id
from pellucid.core.statement import MODEL_SIGNING, PAYLOAD_TYPE, make_statement, parse_statement
from pellucid.errors import DigestMismatchError, FormatError, PackageError, SignatureError

SERIALIZATION: Final[dict[str, Any]] = {
    "method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": [ATTESTATIONS],
}  # fmt: skip


def file_digests(files: Mapping[str, Data], digest: Callable[[Data], str] = sha256) -> dict[str, str]:
    """Digest of every file that ``model.sig`` covers, in its order. The one pass over the bytes.

    Args:
        digest: Gives the digest of a file, where it may be known already.
    """
    return {path: digest(files[path]) for path in signed_paths(files)}


def root_digest(digests: Mapping[str, str]) -> str:
    """The package digest: SHA-256 over the raw digests in signing order."""
    ordered = b"".join(parse_digest(digests[path]) for path in signed_paths(digests))
    return format_digest(hashlib.sha256(ordered).digest())


def signing_payload(name: str, digests: Mapping[str, str]) -> bytes:
    """The in-toto statement that is signed: subject ``name`` with the root digest, every file listed."""
    predicate = {"serialization": SERIALIZATION, "resources": _resources(digests)}
    return make_statement([(name, root_digest(digests))], MODEL_SIGNING, predicate)


def _resources(digests: Mapping[str, str]) -> list[dict[str, str]]:
    return [
        {"name": path, "algorithm": "sha256", "digest": parse_digest(digests[path]).hex()}
        for path in signed_paths(digests)
    ]


def sign_package(files: Mapping[str, bytes], name: str, signer: SigningKey) -> bytes:
    """``model.sig`` for a package's files.

    Raises:
        SignatureError: The key is not P-256: stock verifiers read no other.
    """
    if signer.algorithm != "ecdsa-p256":
        raise SignatureError(f"model.sig: expected a P-256 key, got {signer.algorithm}")
    return sign_bundle(PAYLOAD_TYPE, signing_payload(name, file_digests(files)), signer)


def verify_by_any(subject: str, raw: bytes, keys: Sequence[bytes]) -> tuple[bytes, str]:
    """Payload of a bundle that one of the keys signed, and that key's id.

    The bundle must be the one spelling that our signer writes, key hint included, so that no byte of
    it can change unseen.

    Raises:
        SignatureError: No key given, none signed it, or bytes around the signature were changed.
    """
    if not keys:
        raise SignatureError(
            f"{subject}: expected a trusted key for it, got none", hint="add <role>.pem to the trust folder"
        )
    for pem in keys:
        try:
            payload = verify_bundle(raw, pem, PAYLOAD_TYPE)
        except SignatureError:
            continue
        signature = parse_bundle(raw).signatures[0]
        if raw != encode_bundle(PAYLOAD_TYPE, payload, signature, key_id(pem)):
            raise SignatureError(f"{subject}: expected the canonical bundle, got another spelling of it")
        return payload, key_id(pem)
    known = ", ".join(key_id(pem)[:16] for pem in keys)
    raise SignatureError(
        f"{subject}: expected a signature by one of the keys {known}, got one that verifies with none",
        hint="another key signed it, or its bytes changed after signing",
    )


def verify_model_signature(
    raw: bytes, name: str, digests: Mapping[str, str], keys: Sequence[bytes]
) -> tuple[str, str]:
    """Package digest and signer's key id, once the signature covers exactly these files.

    Args:
        raw: ``model.sig``.
        name: The package's folder name.
        digests: Digest of every file that must be covered (``file_digests``).
        keys: PEMs allowed to sign packages.

    Raises:
        SignatureError: No allowed key signed it.
        PackageError: Another folder name, a missing or an extra file, or other serialization rules.
        DigestMismatchError: A file of another content.
    """
    payload, signer = verify_by_any(SIGNATURE, raw, keys)
    statement = parse_statement(payload)
    if statement.predicate_type != MODEL_SIGNING:
        raise FormatError(f"{SIGNATURE}: expected {MODEL_SIGNING}, got {statement.predicate_type!r:.120}")
    if statement.predicate.get("serialization") != SERIALIZATION:
        raise PackageError(f"{SIGNATURE}: expected serialization {SERIALIZATION}, got another")
    _compare_resources(_parse_resources(statement.predicate.get("resources")), digests)
    root = root_digest(digests)
    if [root] != [digest for _, digest in statement.subjects]:
        raise PackageError(f"{SIGNATURE}: expected the subject {root[:19]}..., got another")
    if statement.subjects[0][0] != name:
        raise PackageError(
            f"package folder: expected {statement.subjects[0][0]!r:.120} as signed, got {name!r:.120}",
            hint="rename the folder back: its name is inside the signed bytes",
        )
    return root, signer


def _parse_resources(value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, list):
        raise FormatError(f"{SIGNATURE}: expected a list of resources, got {type(value).__name__}")
    resources = []
    for item in value:
        if not isinstance(item, dict) or item.get("algorithm") != "sha256":
            raise FormatError(f"{SIGNATURE}: expected resources with sha256, got {item!r:.80}")
        path, digest = item.get("name"), f"sha256:{item.get('digest')}"
        if not isinstance(path, str):
            raise FormatError(f"{SIGNATURE}: expected resource names as text, got {path!r:.40}")
        parse_digest(digest)
        resources.append((path, digest))
    return resources


def _compare_resources(signed: list[tuple[str, str]], digests: Mapping[str, str]) -> None:
    listed = dict(signed)
    if missing := sorted(listed.keys() - digests.keys()):
        raise PackageError(f"package: expected {missing[0]!r:.240}, got a package without this file")
    if extra := sorted(digests.keys() - listed.keys()):
        raise PackageError(f"package: expected only signed files, got {extra[0]!r:.240} as well")
    for path, digest in signed:
        if digests[path] != digest:
            raise DigestMismatchError(
                f"{path}: expected {digest[:19]}..., got {digests[path][:19]}...",
                hint="the file changed after it was signed: fetch the package again, or rebuild it",
            )
    if [path for path, _ in signed] != signed_paths(digests):
        raise PackageError(f"{SIGNATURE}: expected each file once, in signing order, got another list")
