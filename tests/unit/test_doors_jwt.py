"""JWTs: what is believed, and the attacks of the books; keys from a file and from a real https server."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from pellucid.app.doors import SiteBearers
from pellucid.app.jwks import JWKS_MAX, Jwts, Refresher, fetch, open_jwts, parse_keys
from pellucid.app.site import Site, create_site, open_site
from pellucid.errors import ConfigError, PellucidError, UnauthenticatedError, UnavailableError
from pellucid.testing.certificates import Authority

RSA = rsa.generate_private_key(65_537, 2_048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
KEYS = {"rsa": (RSA, "RS256"), "ec": (EC, "ES256"), "ed": (ED, "EdDSA")}


def jwk(key: Any, kid: str, algorithm: str, **more: Any) -> dict[str, Any]:
    row = json.loads(jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key()))
    row.pop("key_ops", None)
    return row | {"kid": kid, "use": "sig"} | more


def key_set(*kids: str) -> bytes:
    return json.dumps({"keys": [jwk(*(KEYS[k][0], k, KEYS[k][1])) for k in kids or KEYS]}).encode()


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    whole = {
        "iss": "https://idp.example", "aud": "pellucid", "sub": "anna", "iat": now, "exp": now + 600,
        "roles": ["client"],
    } | changes  # fmt: skip
    return {name: value for name, value in whole.items() if value is not None}


def token(kid: str = "ec", head: dict[str, Any] | None = None, **changes: Any) -> str:
    key, algorithm = KEYS[kid]
    return jwt.encode(claims(**changes), key, algorithm, headers={"kid": kid} | (head or {}))


def make(keys: bytes | None = None, **more: Any) -> Jwts:
    jwts = Jwts(issuer="https://idp.example", audience="pellucid", **more)
    jwts.use(parse_keys(keys or key_set()))
    return jwts


@pytest.mark.parametrize("kid", KEYS)
def test_three_kinds_of_signature_are_believed(kid: str):
    caller = make().find(token(kid))
    assert (caller.identity, caller.roles, caller.how) == ("jwt:anna", frozenset({"client"}), "jwt")
    assert 0 < caller.until_ns - time.time_ns() <= 631 * 10**9


def part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def forged(head: dict[str, Any], secret: bytes | None = None, **changes: Any) -> str:
    signed = f"{part(head)}.{part(claims(**changes))}"
    mac = hmac.new(secret, signed.encode(), hashlib.sha256).digest() if secret is not None else b""
    return f"{signed}.{part(mac)}"


PEMS = [
    key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key, _ in KEYS.values()
]


def attacks() -> Iterator[tuple[str, str]]:
    for word in ("none", "None", "NONE", "nOnE", ""):
        yield f"alg {word!r}", forged({"alg": word, "kid": "ec"})
    for kid, pem in zip(KEYS, PEMS, strict=True):
        yield f"HS256 with the public key {kid}", forged({"alg": "HS256", "kid": kid}, pem)
        yield f"HS256 with the set {kid}", forged({"alg": "HS256", "kid": kid}, key_set(kid))
    yield "HS256 with nothing", forged({"alg": "HS256", "kid": "ec"}, b"")
    yield "another algorithm of the same key", jwt.encode(claims(), RSA, "RS512", headers={"kid": "rsa"})
    yield "PS256", jwt.encode(claims(), RSA, "PS256", headers={"kid": "rsa"})
    stranger = ec.generate_private_key(ec.SECP256R1())
    yield "a stranger's key", jwt.encode(claims(), stranger, "ES256", headers={"kid": "ec"})
    mine = jwk(stranger, "ec", "ES256")
    yield "a key inside", jwt.encode(claims(), stranger, "ES256", headers={"kid": "ec", "jwk": mine})
    yield (
        "keys elsewhere",
        jwt.encode(
            claims(),
            stranger,
            "ES256",
            headers={"kid": "x", "jku": "https://evil.example", "x5u": "https://evil"},
        ),
    )
    for kid in ("../../etc/passwd", "' OR 1=1 --", "", "ec\x00", "k" * 10_000, "/dev/null"):
        yield f"kid {kid[:12]!r}", jwt.encode(claims(), stranger, "ES256", headers={"kid": kid})
    for kid in (7, None, ["ec"], {"a": 1}):
        yield f"kid {kid!r}", forged({"alg": "ES256", "kid": kid}, b"x")
    yield "another's kid", jwt.encode(claims(), EC, "ES256", headers={"kid": "ed"})
    yield "expired", token(exp=int(time.time()) - 60)
    yield "no end", token(exp=None)
    yield "not yet", token(nbf=int(time.time()) + 86_400)  # made at collection, long before it is tried
    yield "of tomorrow", token(iat=int(time.time()) + 86_400)
    yield "another audience", token(aud="other")
    yield "no audience", token(aud=None)
    yield "audience inside a word", token(aud="pellucid2")
    yield "another issuer", token(iss="https://idp.example.evil")
    yield "no issuer", token(iss=None)
    yield "nobody", token(sub=None)
    yield "an empty name", token(sub="")
    yield "a name that breaks lines", token(sub="anna\nroot")
    yield "an endless name", token(sub="a" * 300)
    yield "an end without end", forged({"alg": "ES256", "kid": "ec"}, b"x", exp=10**400)
    yield "critical extensions", token(head={"crit": ["b64"], "b64": False})
    good = token()
    head, body, signature = good.split(".")
    yield "a changed body", f"{head}.{part(claims(roles=['sre']))}.{signature}"
    yield "no signature", f"{head}.{body}."
    yield "two parts", f"{head}.{body}"
    yield "four parts", f"{good}.x"
    yield "five parts, as if encrypted", f"{good}.x.y"
    yield "inside another", jwt.encode({"jwt": good}, stranger, "ES256", headers={"kid": "ec"})
    yield "giant", token(more="x" * 100_000)
    yield "deep", f"{part(b'[' * 6_000)}.{part(claims())}.{signature}"
    yield "a number as head", f"{part(1)}.{body}.{signature}"
    yield "not base64", f"{head}.{body}.***"
    yield "zeros", f"{head}.{body}.{part(bytes(64))}"  # CVE-2022-21449


@pytest.mark.parametrize(("attack", "text"), [pytest.param(a, t, id=a) for a, t in attacks()])
@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_attacks(attack: str, text: str):
    with pytest.raises(UnauthenticatedError) as caught:
        make().find(text)
    assert caught.value.message == "token: expected a valid one, got another"  # and no word on why


@given(st.text(max_size=300) | st.binary(max_size=90).map(lambda b: f"{part(b)}.{part(b)}.{part(b)}"))
def test_any_text_is_refused_by_name(text: str):
    with pytest.raises(UnauthenticatedError):
        make().find(text)


# -- claims ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "changes", "roles"),
    [
        ({}, {"roles": ["client", "sre", "root"]}, {"client", "sre"}),
        ({}, {"roles": "client auditor"}, {"client", "auditor"}),
        ({}, {"roles": None}, set()),
        ({}, {"roles": {"client": True}}, set()),
        ({}, {"roles": [["client"], 1, None]}, set()),
        ({"roles_claim": "realm_access.roles"}, {"realm_access": {"roles": ["sre"]}}, {"sre"}),
        ({"roles_claim": "https://x.example/roles"}, {"https://x.example/roles": ["sre"]}, {"sre"}),
        ({"roles_claim": "groups", "roles": {"ml": "client"}}, {"groups": ["ml", "sre"]}, {"client"}),
    ],
)
def test_roles(settings: dict[str, Any], changes: dict[str, Any], roles: set[str]):
    assert make(**settings).find(token(**changes)).roles == roles


def test_the_name_comes_from_the_claim_that_is_configured():
    assert (
        make(subject_claim="email").find(token(email="anna@example.org")).identity == "jwt:anna@example.org"
    )


def test_clocks_may_be_a_little_apart():
    late = token(exp=int(time.time()) - 5)
    assert make(leeway_s=30).find(late)
    with pytest.raises(UnauthenticatedError):
        make(leeway_s=0).find(late)


# -- keys -----------------------------------------------------------------------------------------


def test_keys_that_will_not_do_are_left_out():
    small = rsa.generate_private_key(65_537, 1_024)
    p384 = ec.generate_private_key(ec.SECP384R1())
    rows = [
        jwk(small, "small", "RS256"), jwk(p384, "p384", "ES384"), jwk(EC, "enc", "ES256", use="enc"),
        jwk(EC, "hs", "ES256", alg="HS256"), {"kty": "oct", "kid": "oct", "k": part(b"secret" * 8)},
        {"kty": "EC", "kid": "broken", "crv": "P-256", "x": "AA", "y": "AA"}, jwk(EC, "good", "ES256"),
    ]  # fmt: skip
    assert list(parse_keys(json.dumps({"keys": rows}).encode())) == ["good"]
    with pytest.raises(ConfigError, match="public key"):
        parse_keys(json.dumps({"keys": rows[:-1]}).encode())


@given(st.binary(max_size=100) | st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["keys", "kty", "crv", "x", "n", "e", "alg"]), inner, max_size=4)
).map(lambda v: json.dumps({"keys": v} ).encode()))  # fmt: skip
def test_any_bytes_are_keys_or_refused_by_name(raw: bytes):
    with pytest.raises(ConfigError):
        parse_keys(raw)


def test_one_key_without_a_name_is_the_one():
    row = jwk(EC, "x", "ES256")
    del row["kid"]
    nameless = jwt.encode(claims(), EC, "ES256")
    assert make(json.dumps({"keys": [row]}).encode()).find(nameless)
    with pytest.raises(UnauthenticatedError):
        make().find(nameless)  # of three keys none is the one


def test_keys_are_read_again_and_kept_when_they_cannot_be():
    woken: list[None] = []
    jwts = Jwts(issuer="https://idp.example", audience="pellucid", wake=lambda: woken.append(None))
    said: list[str] = []
    now = {"raw": key_set("ec")}

    def read() -> bytes:
        if isinstance(now["raw"], Exception):
            raise now["raw"]
        return now["raw"]

    refresher = Refresher(read, jwts.use, said.append)
    refresher.look()
    refresher.look()
    assert (jwts.changes, bool(jwts.find(token("ec")))) == (1, True)
    with pytest.raises(UnauthenticatedError):
        jwts.find(token("ed"))
    assert woken  # an unknown key asks for new ones
    now["raw"] = UnavailableError("keys: expected an answer, got none")
    for _ in range(3):
        refresher.look()
    assert len(said) == 1
    assert jwts.find(token("ec"))
    now["raw"] = key_set("ed")
    refresher.look()
    assert jwts.find(token("ed"))
    with pytest.raises(UnauthenticatedError):
        jwts.find(token("ec"))  # withdrawn


# -- where they come from -------------------------------------------------------------------------


class Keys(http.server.BaseHTTPRequestHandler):
    answers: dict[str, tuple[int, dict[str, str], bytes]]

    def do_GET(self) -> None:
        status, headers, body = self.answers[self.path]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[tuple[str, Path, dict[str, tuple[int, dict[str, str], bytes]]]]:
    authority = Authority(tmp_path)
    files = authority.sign("idp")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Keys,), {"answers": answers}))
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that hangs up
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"https://localhost:{server.server_address[1]}", authority.file, answers
    server.shutdown()
    thread.join()
    server.server_close()


def test_keys_come_over_https_and_only_so(
    provider: tuple[str, Path, dict[str, tuple[int, dict[str, str], bytes]]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # what the environment says is not asked
    url, authority, answers = provider
    answers |= {
        "/good": (200, {}, key_set()), "/large": (200, {}, b"x" * (JWKS_MAX + 1)), "/none": (404, {}, b""),
        "/moved": (302, {"Location": "/good"}, b""), "/error": (500, {}, key_set()),
    }  # fmt: skip
    assert set(parse_keys(fetch(f"{url}/good", str(authority)))) == set(KEYS)
    for path in ("/large", "/none", "/moved", "/error"):
        with pytest.raises(UnavailableError):
            fetch(url + path, str(authority))
    with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        fetch(f"{url}/good", None)


def configured(root: Path, lines: str) -> Site:
    site = create_site(root, node="test1")
    text = '\n[doors]\nauthenticate = true\njwt_issuer = "https://idp.example"\njwt_audience = "pellucid"\n'
    with (site.root / "pellucid.toml").open("a") as file:
        file.write(text + lines)
    return open_site(site.root)


def test_a_site_believes_its_provider(
    provider: tuple[str, Path, dict[str, tuple[int, dict[str, str], bytes]]], tmp_path: Path
):
    url, authority, answers = provider
    answers["/keys"] = (200, {}, key_set())
    said: list[str] = []
    site = configured(tmp_path / "a", f'jwks = "{url}/keys"\njwks_ca = "{authority}"\n')
    bearers = SiteBearers(
        tmp_path / "none.json", time.monotonic_ns, said.append, open_jwts(site, said.append)
    )
    assert bearers.find(token(), 0).identity == "jwt:anna"
    assert said == []
    gone = configured(tmp_path / "b", 'jwks = "https://127.0.0.1:9/keys"\n')
    with pytest.raises(UnauthenticatedError):
        open_jwts(gone, said.append).find(token())  # the server starts, and says so
    assert len(said) == 1
    with pytest.raises(PellucidError):
        open_jwts(configured(tmp_path / "c", 'jwks = "keys.json"\n'), said.append)  # a file must be there
    site = configured(tmp_path / "d", 'jwks = "keys.json"\n')
    (site.root / "keys.json").write_bytes(key_set("ed"))
    assert open_jwts(site, said.append).find(token("ed"))
