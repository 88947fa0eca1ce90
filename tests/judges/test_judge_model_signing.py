"""The stock ``model_signing`` program accepts an unpacked package, and refuses it after one changed byte."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from pellucid.core.archive import write_archive
from pellucid.testing.packages import Workshop

pytestmark = pytest.mark.judge
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def judge() -> Path:
    done = subprocess.run(
        [sys.executable, str(HERE / "make_venvs.py"), "model-signing"],
        capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"NOT RUN model-signing: {done.stderr.strip()[:200] or 'could not be made'}")
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A package with attestations, unpacked by the standard library's tar, and the builder's key."""
    shop = Workshop()
    package = shop.approve(shop.package(extra={"a/b.txt": b"1", "a-b.txt": b"2", "é.txt": b"3"}))
    base = tmp_path_factory.mktemp("judge")
    archive = base / "toy.tar.gz"
    archive.write_bytes(write_archive(package.name, package.files))
    with tarfile.open(archive) as tar:
        tar.extractall(base, filter="data")
    key = base / "builder.pem"
    key.write_bytes(shop.trust.of("builder")[0])
    assert len(list((base / package.name / "attestations").iterdir())) == 2
    return base / package.name, key


def verify(judge: Path, folder: Path, key: Path) -> subprocess.CompletedProcess[str]:
    command = [
        str(judge), "-m", "model_signing", "verify", "key", str(folder),
        "--public_key", str(key), "--signature", str(folder / "model.sig"),
    ]  # fmt: skip
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), "LC_ALL": "C.UTF-8"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def test_the_stock_verifier_accepts_the_package_with_its_attestations(judge: Path, unpacked):
    done = verify(judge, *unpacked)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", ["engine/model.fake", "manifest.json", "a/b.txt"])
def test_the_stock_verifier_refuses_one_changed_byte(judge: Path, unpacked, path: str):
    folder, key = unpacked
    file = folder / path
    kept = file.read_bytes()
    file.write_bytes(bytes([kept[0] ^ 1]) + kept[1:])
    try:
        done = verify(judge, folder, key)
    finally:
        file.write_bytes(kept)
    assert done.returncode != 0
    assert path in done.stdout + done.stderr


def test_the_stock_verifier_refuses_a_file_more_and_another_key(judge: Path, unpacked):
    folder, key = unpacked
    extra = folder / "extra.bin"
    extra.write_bytes(b"x")
    try:
        assert verify(judge, folder, key).returncode != 0
    finally:
        extra.unlink()
    other = folder.parent / "other.pem"
    other.write_bytes(Workshop().trust.of("builder")[0])
    assert verify(judge, folder, other).returncode != 0
