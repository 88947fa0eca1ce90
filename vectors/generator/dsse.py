"""Envelopes in Sigstore bundles."""

from __future__ import annotations

import base64
import json

from generator.keys import HERE, Case, key

from pellucid.core import dsse, statement
from pellucid.core.signature import key_id, verify_signature
from pellucid.errors import PellucidError
from pellucid.keys.file import FileKey


def dsse_cases() -> list[Case]:
    payload = statement.make_statement(
        [("toy-v1", "sha256:" + "ab" * 32)], statement.QUALIFICATION, {"passed": True, "samples": 3}
    )
    cases = [
        {"name": "pae", "operation": "pae", "payload_type": "http://example.com/HelloWorld",
         "payload_hex": b"hello world".hex(),
         "expected": dsse.pae("http://example.com/HelloWorld", b"hello world").hex()}
    ]  # fmt: skip
    for name, signer in (("ed25519", key("log")), ("p256", key("builder"))):
        raw = kept_bundle(f"verify_{name}", payload, signer)
        cases += bundle_variants(name, raw, payload, signer.public_pem().decode())
    return cases


def kept_bundle(name: str, payload: bytes, signer: FileKey) -> bytes:
    """The committed bundle while its signature verifies, or a new one."""
    try:
        committed = json.loads((HERE / "dsse.json").read_text())
        raw = next(case["bundle"] for case in committed["cases"] if case["name"] == name).encode()
        signature = dsse.parse_bundle(raw).signatures[0]
        verify_signature(signer.public_pem(), dsse.pae(statement.PAYLOAD_TYPE, payload), signature)
    except (OSError, ValueError, KeyError, StopIteration, PellucidError):
        return dsse.sign_bundle(statement.PAYLOAD_TYPE, payload, signer)
    return dsse.encode_bundle(statement.PAYLOAD_TYPE, payload, signature, key_id(signer.public_pem()))


def bundle_variants(name: str, raw: bytes, payload: bytes, pem: str) -> list[Case]:
    text = raw.decode()
    envelope = json.loads(text)
    signature = envelope["dsseEnvelope"]["signatures"][0]
    twice = json.loads(text)
    twice["dsseEnvelope"]["signatures"].append(signature)
    encoded = base64.b64encode(payload).decode()
    changed = base64.b64encode(payload.replace(b'"samples":3', b'"samples":4')).decode()
    cut = base64.b64encode(base64.b64decode(signature["sig"])[:-1]).decode()
    bad = {
        "payload": text.replace(encoded, changed),
        "payload_type": text.replace("in-toto+json", "in-toto+jsom"),
        "signature": text.replace(signature["sig"], cut),
        "two_signatures": json.dumps(twice),
        "no_signature": text.replace(json.dumps([signature], separators=(",", ":"), sort_keys=True), "[]"),
        "media_type": text.replace("v0.3", "v0.2"),
        "duplicate_key": text.replace('{"dsseEnvelope"', '{"mediaType":"x","dsseEnvelope"', 1),
        "loose_base64": text.replace(encoded, encoded[:-4] + " " + encoded[-4:]),
        "cut": text[:-1],
    }
    other = key("other").public_pem().decode()
    good = {"operation": "verify", "public_pem": pem, "bundle": text}
    return [
        {"name": f"verify_{name}", **good, "expected": payload.hex()},
        {"name": f"verify_{name}_other_key_fail", **good, "public_pem": other},
    ] + [{"name": f"verify_{name}_{what}_fail", **good, "bundle": changed} for what, changed in bad.items()]
