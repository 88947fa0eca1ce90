"""The page inside a bundle checks the bundle, in a real browser, from disk, without a network."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from pellucid.core.bundle import read_container, write_container
from pellucid.testing.evidence import ToyCase, export_toy, make_case

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip
LOOKS_MAX = 6
DRIVER = """<script>
const give = (id, files) => {
  const box = new DataTransfer();
  for (const [name, data] of Object.entries(files))
    box.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name));
  document.getElementById(id).files = box.files;
};
give("trust", TRUST); give("bundle", BUNDLE);
document.getElementById("check").click();
</script></body>"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(CHROMIUM is None, reason="NOT RUN browser: chromium is not installed"),
]


@pytest.fixture(scope="module")
def case() -> ToyCase:
    return make_case()


@pytest.fixture(scope="module")
def bundle(case: ToyCase) -> bytes:
    return export_toy(case)


def drive(tmp_path: Path, page: bytes, trust: dict[str, bytes], bundle: bytes) -> str:
    """The page after its reader chose files and pressed the button."""
    encode = {name: base64.b64encode(data).decode() for name, data in trust.items()}
    zipped = {"bundle.zip": base64.b64encode(bundle).decode()}
    driver = DRIVER.replace("TRUST", json.dumps(encode)).replace("BUNDLE", json.dumps(zipped))
    path = tmp_path / "index.html"
    path.write_text(page.decode().replace("</body>", driver))
    told = ""
    for number in range(LOOKS_MAX):
        # the browser's clock is virtual, its cryptography is not: on a busy machine the page may be
        # looked at before it has come to a verdict; then it is opened again
        done = subprocess.run(
            [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / f'profile{number}'}",
             "--virtual-time-budget=20000", "--dump-dom", path.as_uri()],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        told = done.stdout
        if "data-result=" in told:
            break
    return told


def said(page: str) -> tuple[str, list[str]]:
    verdict = re.search(r'<body data-result="(\w+)"', page)
    items = re.findall(r'<li class="(?:holds|fails|note)"><b>(\w+)</b>(.*?)</li>', page)
    return (verdict[1] if verdict else "nothing"), [unescape(f"{kind}: {text}") for kind, text in items]


def keys_of(case: ToyCase) -> dict[str, bytes]:
    return {"log.vkey": case.log.vkey.encode(), "exporter.pem": case.keys["exporter"].public_pem()}


def test_a_good_bundle_holds_and_shows_the_keys_it_believed(
    case: ToyCase, bundle: bytes, tmp_path: Path
) -> None:
    page = read_container(bundle)["index.html"]
    verdict, items = said(drive(tmp_path, page, keys_of(case), bundle))
    assert verdict == "holds", items
    text = "\n".join(items)
    assert "row 0: the committed answer is granted with confidence 0.500000" in text
    assert "4 entries are in the log" in text
    assert "compare them with what you were given" in text


@pytest.mark.parametrize("what", ["entry", "checkpoint", "openings", "signature"])
def test_a_changed_member_does_not_hold(case: ToyCase, bundle: bytes, tmp_path: Path, what: str) -> None:
    members = read_container(bundle)
    name = {
        "entry": "entries/000000000003.json", "checkpoint": "log/checkpoint",
        "openings": "openings/000000000003.json", "signature": "manifest.sigstore.json",
    }[what]  # fmt: skip
    data = members[name]
    at = data.index(b'"sig":"') + 20 if what == "signature" else len(data) // 2
    other = b"A" if data[at : at + 1] != b"A" else b"B"
    broken = write_container({**members, name: data[:at] + other + data[at + 1 :]})
    verdict, items = said(drive(tmp_path, members["index.html"], keys_of(case), broken))
    assert verdict == "fails", items


def test_a_key_from_somebody_else_does_not_hold(case: ToyCase, bundle: bytes, tmp_path: Path) -> None:
    keys = keys_of(case) | {"exporter.pem": case.keys["builder"].public_pem()}
    verdict, items = said(drive(tmp_path, read_container(bundle)["index.html"], keys, bundle))
    assert verdict == "fails"
    assert any("manifest.sigstore.json: the signature does not verify" in item for item in items)


def test_an_older_log_is_caught(case: ToyCase, bundle: bytes, tmp_path: Path) -> None:
    later = make_case()
    later.keys, later.log.key = case.keys, case.log.key
    later.log.event("read", {"what": "answer"})
    later.log.publish()
    keys = keys_of(case) | {"seen.checkpoint": later.log.checkpoint}
    verdict, items = said(drive(tmp_path, read_container(bundle)["index.html"], keys, bundle))
    assert verdict == "fails"
    assert any("older than the checkpoint you saw" in item for item in items)
