"""The thief: has write access to everything but the log's key, and tries to change the past.

Each attempt works on its own copy of the site and does the best that access allows: where the tree
must fit again, it is computed again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from pellucid.core import canonical
from pellucid.core.archive import read_archive
from pellucid.core.bundle import MANIFEST, SIGNATURE, read_container, seal
from pellucid.core.checkpoint import Checkpoint, sign_checkpoint
from pellucid.core.merkle.hashing import hash_leaf, root_of
from pellucid.core.merkle.tile import TILE_WIDTH, encode_bundle, entries_path, grow_tiles
from pellucid.keys.file import FileKey
from walk.log import Entries, bundle, position, published, read_log, read_log_of_any_size

PARTS = ("pellucid.toml", "policy.yaml", "keys", "trust", "packages", "ledger")


def copy_site(site: Path, target: Path) -> Path:
    """A copy to spoil; the original stays as it is."""
    target.mkdir(parents=True)
    for name in PARTS:
        source = site / name
        if source.is_dir():
            shutil.copytree(source, target / name)
        else:
            shutil.copy2(source, target / name)
    return target


def flip_engine_byte(archive: Path, target: Path) -> tuple[Path, str]:
    """Unpack a package and change one byte in the middle of its engine; folder and file name."""
    package = read_archive(archive.read_bytes())
    engine = next(path for path in sorted(package.files) if path.startswith("engine/"))
    for path, data in package.files.items():
        file = target / package.name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        middle = len(data) // 2
        changed = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if path == engine else data
        file.write_bytes(changed)
    return target / package.name, engine


def change_value(ledger: Path, key: str, change: Callable[[bytes], bytes]) -> None:
    """Change one entry where it lies, and nothing else."""
    entries = read_log(ledger)
    n, within = divmod(position(entries, key), TILE_WIDTH)
    chunk = entries[n * TILE_WIDTH : (n + 1) * TILE_WIDTH]
    chunk[within] = change(chunk[within])
    bundle(ledger, n, len(chunk)).write_bytes(encode_bundle(chunk))


def rewrite(ledger: Path, change: Callable[[Entries], Entries]) -> None:
    """Change the entries, then compute every tile again, so that the tree fits them."""
    entries = change(read_log(ledger))
    shutil.rmtree(ledger / "tile")
    objects = grow_tiles(0, [hash_leaf(entry) for entry in entries], _nothing)
    for n in range(-(-len(entries) // TILE_WIDTH)):
        chunk = entries[n * TILE_WIDTH : (n + 1) * TILE_WIDTH]
        objects[entries_path(n, len(chunk))] = encode_bundle(chunk)
    for path, data in objects.items():
        (ledger / path).parent.mkdir(parents=True, exist_ok=True)
        (ledger / path).write_bytes(data)


def _nothing(*at: int) -> bytes:
    raise LookupError(f"expected a tree that starts empty, got a question for {at}")


def sign_with_own_key(site: Path) -> None:
    """Sign the rewritten tree with a key of the thief's: the log's is out of reach."""
    ledger = site / "ledger"
    origin = published(ledger).origin
    entries = read_log_of_any_size(ledger)
    key = FileKey.generate(site / "keys" / "thief.key", "ed25519")
    tree = Checkpoint(origin, len(entries), root_of([hash_leaf(entry) for entry in entries]))
    (ledger / "checkpoint").write_bytes(sign_checkpoint(tree, key))


def swap_outputs(first: str, second: str) -> Callable[[Entries], Entries]:
    """Exchange what the log says two calls were answered with."""

    def change(entries: Entries) -> Entries:
        one, two = position(entries, first), position(entries, second)
        a, b = (json.loads(entries[at])["data"]["rows"][0]["output"] for at in (one, two))
        changed = list(entries)
        changed[one] = entries[one].replace(a.encode(), b.encode())
        changed[two] = entries[two].replace(b.encode(), a.encode())
        return changed

    return change


def without(key: str) -> Callable[[Entries], Entries]:
    """Leave one entry out; the last one stands twice, so that the count is right."""

    def change(entries: Entries) -> Entries:
        at = position(entries, key)
        return entries[:at] + entries[at + 1 :] + entries[-1:]

    return change


def forge_bundle(raw: bytes, exporter: Path) -> bytes:
    """Make 'refused' 'granted' in a bundle's opened output and sign the manifest again."""
    members = read_container(raw)
    created = canonical.decode(members.pop(MANIFEST))["created"]
    del members[SIGNATURE]
    for name in [name for name in members if name.startswith("openings/")]:
        members[name] = members[name].replace(b'"label":"refused"', b'"label":"granted"')
    return seal(members, created=created, signer=FileKey.from_uri(f"file:{exporter}"))
