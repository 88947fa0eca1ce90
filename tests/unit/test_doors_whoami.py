"""What a pod says of itself: known values, and null with a reason for what cannot be known."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from pellucid.app.serve import make_plane
from pellucid.app.site import create_site
from pellucid.app.whoami import about, service_account
from pellucid.core.access import Caller
from pellucid.core.digest import sha256
from pellucid.core.record import Event
from pellucid.errors import ConfigError
from pellucid.testing.plane import echo_model, exchange
from pellucid.testing.plane import make_plane as plane_of
from pellucid.testing.recorder import MemoryRecorder
from pellucid.testing.site import configure, make_site

CLAIMS = {
    "iss": "https://kubernetes.default.svc", "sub": "system:serviceaccount:prod:pellucid", "aud": ["api"],
    "exp": 2_000_000_000,
    "kubernetes.io": {
        "namespace": "prod", "serviceaccount": {"name": "pellucid", "uid": "1"},
        "pod": {"name": "pellucid-0"},
    },
}  # fmt: skip


def mounted(folder: Path, claims: object) -> Path:
    text = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    path = folder / "token"
    path.write_text(f"aGVhZA.{text}.c2VjcmV0\n")
    return path


def test_a_service_account_is_told_and_its_token_is_not(tmp_path: Path):
    account, reason = service_account(mounted(tmp_path, CLAIMS))
    assert reason == ""
    assert account == {
        "name": "pellucid", "namespace": "prod", "subject": "system:serviceaccount:prod:pellucid",
        "issuer": "https://kubernetes.default.svc", "audiences": ["api"], "pod": "pellucid-0",
        "expires": 2_000_000_000,
    }  # fmt: skip
    assert "c2VjcmV0" not in json.dumps(account)


@pytest.mark.parametrize(
    "raw",
    [b"", b"x", b"a.b.c", b"a.e30.c.d", b"a.W10.c", b"a.MQ.c", b"\xff\xfe", b"a." + b"A" * 20_000 + b".c"],
)
def test_a_token_that_is_none_is_a_reason(tmp_path: Path, raw: bytes):
    (tmp_path / "token").write_bytes(raw)
    account, reason = service_account(tmp_path / "token")
    assert account is None
    assert "no JWT" in reason


def test_claims_of_other_kinds_are_null(tmp_path: Path):
    account, _ = service_account(mounted(tmp_path, {"sub": 1, "exp": "soon", "aud": "one"}))
    assert account is not None
    assert (account["name"], account["subject"], account["expires"]) == (None, None, None)
    assert account["audiences"] == ["one"]


def test_what_is_not_known_says_why(tmp_path: Path):
    site = create_site(tmp_path / "site", node="test1")
    told = about(site, {}, tmp_path / "none")
    assert told["who"]["image"] is None
    assert told["who"]["image_reason"]
    assert told["who"]["sbom_reason"] == "PELLUCID_SBOM does not name a file"
    assert told["allowed"]["service_account_reason"] == "no token of a service account is mounted"
    assert told["allowed"]["policy"] == sha256(site.policy_bytes())
    sbom = tmp_path / "sbom.json"
    sbom.write_text("{}")
    image = "registry.example/pellucid@sha256:" + "a" * 64
    said = {"PELLUCID_IMAGE": image, "PELLUCID_SBOM": str(sbom), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    told = about(site, said, mounted(tmp_path, CLAIMS))
    assert (told["who"]["image"], told["who"]["sbom"]) == (image, sha256(b"{}"))
    assert told["who"]["container"]["kind"] == "kubernetes"
    assert told["allowed"]["service_account"]["name"] == "pellucid"
    assert "reason" not in json.dumps(told["who"])


def test_the_page(tmp_path: Path):
    model = echo_model(about={"approvals": [{"role": "sre"}], "optimisations": {"precision": "fp32"}})
    plane = plane_of([model])
    (reply,) = exchange(plane, [("GET", "/whoami")])
    assert reply.status == 200
    assert reply.json["caller"] is None
    assert reply.json["what"]["models"][0]["optimisations"] == {"buckets": [1, 4, 8], "precision": "fp32"}
    assert reply.json["allowed"]["models"][0]["approvals"] == [{"role": "sre"}]
    caller = Caller("jwt:anna", frozenset({"sre", "client", "of tomorrow"}), "jwt")
    assert plane.manage.whoami(caller)["caller"]["roles"] == ["client", "sre"]


def test_a_site_that_serves_openly_says_so_in_its_log_and_its_ledger(tmp_path: Path):
    site, said, recorder = make_site(tmp_path / "site"), list[str](), MemoryRecorder()
    with (site.root / "pellucid.toml").open("a") as file:
        file.write("\n[doors]\nunsafe_open = true\n")
    site = configure(site)
    plane = make_plane(site, recorder, said.append)
    try:
        assert plane.doors is None  # nobody is asked, and nobody pays for it
        assert {"change": "unsafe_open"} in [r.data for r in recorder.records if isinstance(r, Event)]
        assert any("unsafe_open" in line for line in said)
        (model,) = plane.manage.whoami(None)["what"]["models"]
        assert model["optimisations"] == {
            "buckets": [1, 4, 8], "backend": "onnxruntime", "target": "cpu", "precision": "fp32",
            "computed_precision": "fp32", "threads": 1,
            "fused_layers": model["optimisations"]["fused_layers"],
        }  # fmt: skip
        assert type(model["optimisations"]["fused_layers"]) is int
    finally:
        plane.pool.close()


def test_beyond_loopback_a_server_does_not_start_unasked(tmp_path: Path):
    from pellucid.app.serve import serve

    site = configure(create_site(tmp_path / "site", node="test1"), serving={"models": ["x"]})
    with pytest.raises(ConfigError, match=r"doors\.authenticate and doors\.certificate"):
        serve(site, None, host="0.0.0.0", ready=print, report=print)  # type: ignore[arg-type]
    assert not list(site.ledger_folder.iterdir())
