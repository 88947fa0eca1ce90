from __future__ import annotations

import shutil

import pytest

from pellucid.core.merkle.tile import decode_bundle, encode_bundle
from pellucid.errors import VerificationError
from pellucid.ledger.fsck import fsck, verify_fsck
from pellucid.stores.file import FileStore
from pellucid.testing.ledger import LedgerFolder, MemoryKey, make_call

CALLS = 700


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A log of two full tiles and a partial one, with older checkpoints in between."""
    ledger = LedgerFolder(tmp_path_factory.mktemp("made") / "ledger", durable=False)
    recorder = ledger.recorder()
    sequencer = ledger.sequencer()
    for n in range(CALLS):
        recorder.close_call(make_call(recorder.reserve(1), context=0, personal={}))
        if n in (3, 600, 650):
            sequencer.drain()
    recorder.close()
    sequencer.drain()
    sequencer.close()
    ledger.close()
    return ledger.root


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "ledger")


@pytest.fixture
def ledger(folder):
    ledger = LedgerFolder(folder)
    yield ledger
    ledger.close()


def places(report):
    return {finding.place for finding in report.findings}


def test_a_good_log_is_clean_with_and_without_its_state(ledger):
    for state in (ledger.state, None):
        report = fsck(ledger.store, state, ledger.vkey)
        assert report.findings == ()
        assert (report.size, report.entries, report.calls) == (CALLS + 2, CALLS + 2, CALLS)
        assert verify_fsck(report) is report


def test_every_published_file_is_looked_at(folder, ledger):
    """One changed byte anywhere below the published files: a finding that names the file or its entry."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and "tile" in p.parts):
        data = path.read_bytes()
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        report = ledger.fsck()
        assert report.findings, path
        path.write_bytes(data[:-1])
        assert ledger.fsck().findings, path
        path.write_bytes(data)
    assert ledger.fsck().is_clean


def change_entry(folder, index, change):
    path = folder / "tile" / "entries" / f"{index // 256:03d}"
    entries = decode_bundle(path.read_bytes(), 256)
    entries[index % 256] = change(entries[index % 256])
    path.write_bytes(encode_bundle(entries))


def test_a_changed_value_is_found_at_its_entry(folder, ledger):
    change_entry(folder, 300, lambda raw: raw.replace(b'"answered"', b'"refused!"'))
    report = ledger.fsck()
    assert places(report) == {"entry 300"}
    with pytest.raises(VerificationError, match="entry 300: tile/0/001 hash 44: expected"):
        verify_fsck(report)


def test_a_changed_hash_is_found_at_its_entry_and_above(folder, ledger):
    path = folder / "tile" / "0" / "001"
    data = bytearray(path.read_bytes())
    data[44 * 32] ^= 1
    path.write_bytes(data)
    assert places(ledger.fsck()) == {"entry 300", "tile/1/000.p/2 hash 1"}


def test_a_changed_edge_is_found_at_the_root(folder, ledger):
    path = folder / "tile" / "1" / "000.p" / "2"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    assert {"tile/1/000.p/2 hash 0", "checkpoint"} <= places(ledger.fsck())


def test_a_changed_value_that_is_no_json_is_found_twice_over(folder, ledger):
    change_entry(folder, 5, lambda raw: raw.replace(b"{", b"{ ", 1))
    reasons = [str(f) for f in ledger.fsck().findings]
    assert any("entry 5: canonical JSON" in reason for reason in reasons)
    assert any("entry 5: tile/0/000 hash 5" in reason for reason in reasons)


def test_a_removed_entry_is_found(folder, ledger):
    path = folder / "tile" / "entries" / "000"
    entries = decode_bundle(path.read_bytes(), 256)
    del entries[9]
    path.write_bytes(encode_bundle(entries))
    report = ledger.fsck()
    assert "tile/entries/000" in places(report)
    assert report.entries == CALLS + 2 - 256


def test_a_missing_bundle_and_a_missing_tile_are_found(folder, ledger):
    (folder / "tile" / "entries" / "001").unlink()
    (folder / "tile" / "0" / "000").unlink()
    assert {"tile/entries/001", "tile/0/000"} <= places(ledger.fsck())


def test_one_key_twice_is_found(folder, ledger):
    path = folder / "tile" / "entries" / "000"
    entries = decode_bundle(path.read_bytes(), 256)
    entries[9] = entries[8]
    path.write_bytes(encode_bundle(entries))
    assert any("again" in finding.reason for finding in ledger.fsck().findings)


def test_another_key_and_no_key_do_not_verify(ledger):
    other = MemoryKey(b"other key" + bytes(23)).vkey(ledger.origin)
    report = fsck(ledger.store, ledger.state, other)
    assert "checkpoint" in places(report)
    assert report.entries == CALLS + 2  # the rest is read all the same


def test_a_checkpoint_without_signature_is_found(folder, ledger):
    raw = (folder / "checkpoint").read_bytes()
    (folder / "checkpoint").write_bytes(raw.partition(b"\n\n")[0] + b"\n\n")
    assert {"checkpoint", "state.db"} <= places(ledger.fsck())


def test_an_older_checkpoint_beside_a_newer_state_is_found(folder, ledger, tmp_path):
    other = LedgerFolder(tmp_path / "other")
    recorder = other.recorder()
    recorder.close()
    other.integrate()
    shutil.copy(other.root / "checkpoint", folder / "checkpoint")
    report = ledger.fsck()
    assert "state.db" in places(report)
    other.close()


def test_a_missing_checkpoint_is_found_by_its_state(folder, ledger):
    (folder / "checkpoint").unlink()
    assert places(ledger.fsck()) >= {"state.db"}


def test_strangers_among_the_tiles_are_found(folder, ledger):
    (folder / "tile" / "0" / "999").write_bytes(bytes(32 * 256))
    (folder / "tile" / "README").write_bytes(b"hello")
    (folder / "tile" / "0" / "000.p").mkdir(exist_ok=True)
    (folder / "tile" / "0" / "000.p" / "3").write_bytes(bytes(96))
    assert {"tile/0/999", "tile/README", "tile/0/000.p/3"} <= places(ledger.fsck())


def test_an_auditors_copy_needs_the_published_files_only(made, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(made / "tile", copy / "tile")
    shutil.copy(made / "checkpoint", copy / "checkpoint")
    assert fsck(FileStore(copy), None, MemoryKey().vkey("node1/test")).is_clean
    assert sorted(p.name for p in copy.iterdir()) == ["checkpoint", "tile"]


def test_an_empty_log_is_clean(tmp_path):
    assert fsck(FileStore(tmp_path), None, MemoryKey().vkey("node1/test")).is_clean
