"""A stranger's log verifier, aics-tlog, judges our tiles, checkpoints and proofs.

One tree grows through the sizes where tiles begin and end; every size is judged from the same
folder, as our ledger leaves it. What it accepts it must refuse once altered.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from pellucid.core.checkpoint import Checkpoint, sign_checkpoint
from pellucid.core.merkle.hashing import hash_leaf
from pellucid.core.merkle.proof import consistency_proof, inclusion_proof
from pellucid.core.merkle.tile import HashReader, encode_bundle, grow_tiles, tiles_between
from pellucid.core.note import format_vkey
from pellucid.core.signature import raw_ed25519
from pellucid.errors import NotFoundError
from pellucid.keys.file import FileKey

HERE = Path(__file__).resolve().parent
ORIGIN = "judge.example/log"
SIZES = (1, 255, 256, 257, 65535, 65536, 65537)
Case = dict[str, Any]

pytestmark = pytest.mark.judge


@pytest.fixture(scope="module")
def python() -> str:
    """The judge's Python."""
    done = subprocess.run(
        [sys.executable, str(HERE / "make_venvs.py"), "aics-tlog"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 3:
        pytest.skip(f"NOT RUN tlog: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@dataclass
class Log:
    folder: Path
    key: FileKey
    vkey: str
    entries: list[bytes]
    leaves: list[bytes]
    readers: dict[int, HashReader]

    def root(self, size: int) -> bytes:
        return self.readers[size].root()

    def note(self, size: int) -> bytes:
        return sign_checkpoint(Checkpoint(ORIGIN, size, self.root(size)), self.key)


def write(folder: Path, path: str, data: bytes) -> None:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    assert not target.exists(), f"{path} is written once"
    target.write_bytes(data)


def grow(folder: Path, entries: list[bytes], sizes: tuple[int, ...]) -> dict[int, HashReader]:
    def get(path: str) -> bytes:
        try:
            return (folder / path).read_bytes()
        except FileNotFoundError:
            raise NotFoundError(path) from None

    readers = {0: HashReader(get, 0)}
    for old, new in zip((0, *sizes), sizes, strict=False):
        fresh = [hash_leaf(entry) for entry in entries[old:new]]
        for path, data in grow_tiles(old, fresh, readers[old].node).items():
            write(folder, path, data)
        for tile in tiles_between(old, new):
            if tile.kind == "entries":
                start = tile.n * 256
                write(folder, str(tile), encode_bundle(entries[start : start + tile.width]))
        readers[new] = HashReader(get, new)
    return readers


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    folder = tmp_path_factory.mktemp("log")
    entries = [b'{"entry":%d}' % number for number in range(SIZES[-1])]
    key = FileKey(ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    vkey = format_vkey(ORIGIN, 1, raw_ed25519(key.public_pem()))
    readers = grow(folder, entries, SIZES)
    return Log(folder, key, vkey, entries, [hash_leaf(entry) for entry in entries], readers)


def judge(python: str, folder: Path, cases: list[Case]) -> list[bool]:
    asked = folder / "cases.json"
    asked.write_text(json.dumps(cases))
    command = [python, "-I", str(HERE / "aics_judge.py"), str(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) == len(cases)
    return answers


def checkpoint_case(log: Log, size: int) -> Case:
    note, root = log.note(size).hex(), log.root(size).hex()
    return {
        "operation": "checkpoint",
        "note": note,
        "vkey": log.vkey,
        "origin": ORIGIN,
        "size": size,
        "root": root,
    }


def inclusion_case(log: Log, index: int, size: int) -> Case:
    proof = [item.hex() for item in inclusion_proof(index, size, log.readers[size].node)]
    return {
        "operation": "inclusion",
        "leaf_hash": log.leaves[index].hex(),
        "index": index,
        "size": size,
        "proof": proof,
        "root": log.root(size).hex(),
    }


def consistency_case(log: Log, old: int, new: int) -> Case:
    proof = [item.hex() for item in consistency_proof(old, new, log.readers[new].node)]
    return {
        "operation": "consistency",
        "old_size": old,
        "new_size": new,
        "old_root": log.root(old).hex(),
        "new_root": log.root(new).hex(),
        "proof": proof,
    }


def indices(size: int) -> list[int]:
    return sorted({i for i in (0, 1, 254, 255, 256, 65534, 65535, 65536, size // 2, size - 1) if i < size})


def good_cases(log: Log) -> list[Case]:
    cases = [checkpoint_case(log, size) for size in SIZES]
    cases += [inclusion_case(log, index, size) for size in SIZES for index in indices(size)]
    cases += [consistency_case(log, old, new) for new in SIZES for old in SIZES if old <= new]
    return cases


def flip(text: str, at: int = 0) -> str:
    """Hex text with one bit changed."""
    return f"{text[:at]}{int(text[at], 16) ^ 1:x}{text[at + 1 :]}"


def altered(case: Case) -> list[Case]:
    """What must no longer hold."""
    if case["operation"] == "checkpoint":
        note = case["note"]
        text = bytes.fromhex(note)
        other = text.replace(b"\n%d\n" % case["size"], b"\n%d\n" % (case["size"] + 1))
        return [case | {"note": flip(note, at)} for at in (4, len(note) - 8)] + [case | {"note": other.hex()}]
    names = [name for name in ("leaf_hash", "root", "old_root", "new_root") if name in case]
    cases = [case | {name: flip(case[name])} for name in names]
    proof = case["proof"]
    if proof:
        cases += [case | {"proof": [*proof[:-1], flip(proof[-1])]}, case | {"proof": proof[1:]}]
    return [*cases, case | {"proof": [*proof, "00" * 32]}]


def test_it_accepts_every_tile_and_bundle_at_every_size(python, log):
    cases = [
        {"operation": "audit", "folder": str(log.folder), "size": size, "root": log.root(size).hex()}
        for size in SIZES
    ]
    reading = {"operation": "entry", "folder": str(log.folder)}
    cases += [
        reading | {"index": index, "size": size, "entry": log.entries[index].hex()}
        for size in SIZES
        for index in indices(size)
    ]
    assert all(judge(python, log.folder, cases))


def test_it_accepts_every_checkpoint_and_proof_and_none_that_was_altered(python, log):
    good = good_cases(log)
    bad = [changed for case in good for changed in altered(case)]
    answers = judge(python, log.folder, good + bad)
    assert [case for case, accepted in zip(good, answers, strict=False) if not accepted] == []
    refused = answers[len(good) :]
    assert [case for case, accepted in zip(bad, refused, strict=True) if accepted] == []


def test_it_finds_one_changed_byte_in_a_tile_or_bundle(python, log, tmp_path):
    cases, base = [], tmp_path / "good"
    readers = grow(base, log.entries, (257,))
    paths = sorted(str(p.relative_to(base)) for p in base.rglob("*") if p.is_file())
    assert len(paths) == 5, "two tiles, their parent and two bundles"
    for number, path in enumerate(paths):
        folder = tmp_path / str(number)
        shutil.copytree(base, folder)
        raw = bytearray((folder / path).read_bytes())
        raw[-1] ^= 1
        (folder / path).write_bytes(raw)
        cases.append({"folder": str(folder)})
    whole = {"operation": "audit", "folder": str(base), "size": 257, "root": readers[257].root().hex()}
    assert judge(python, tmp_path, [whole, *(whole | case for case in cases)]) == [True] + [False] * len(
        paths
    )


def test_its_command_line_follows_our_log_from_one_checkpoint_to_the_next(python, log, tmp_path):
    command = str(Path(python).with_name("aics-tlog"))
    (tmp_path / "log.vkey").write_text(log.vkey + "\n")
    for size in (257, SIZES[-1]):
        (tmp_path / f"{size}").write_bytes(log.note(size))
    (tmp_path / "leaf").write_bytes(log.entries[65535])
    trust = ["--vkey-file", str(tmp_path / "log.vkey"), "--origin", ORIGIN, "--tiles", str(log.folder)]
    latest = ["--checkpoint", str(tmp_path / str(SIZES[-1]))]

    def run(*arguments: str) -> int:
        environment = {"PATH": os.defpath, "HOME": str(tmp_path)}
        return subprocess.run(
            [command, *arguments, *trust], capture_output=True, check=False, timeout=120, env=environment
        ).returncode

    inclusion = ["verify-inclusion", "--leaf", str(tmp_path / "leaf"), *latest]
    assert run("verify-checkpoint", "--note", str(tmp_path / "257")) == 0
    assert run(*inclusion, "--index", "65535") == 0
    assert run(*inclusion, "--index", "65534") != 0
    assert run("verify-consistency", "--old-checkpoint", str(tmp_path / "257"), *latest) == 0
    (tmp_path / "257").write_bytes(log.note(257).replace(b"\n257\n", b"\n256\n"))
    assert run("verify-consistency", "--old-checkpoint", str(tmp_path / "257"), *latest) != 0
