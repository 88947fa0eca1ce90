"""A site's ledger as commands and the server use it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess

import pytest
from click.testing import CliRunner

from pellucid.app import ledger as app
from pellucid.app.clock import SystemClock
from pellucid.app.sinks import read_failing, sink_uris, telling_failures
from pellucid.app.site import create_site, open_site
from pellucid.cli.ledger import command
from pellucid.core.checkpoint import parse_checkpoint
from pellucid.core.entry import parse_entry
from pellucid.core.merkle.hashing import hash_leaf
from pellucid.core.merkle.proof import verify_inclusion
from pellucid.errors import NotFoundError, PellucidError, UnavailableError, UsageError
from pellucid.ledger.recorder import NothingRecorder
from pellucid.ports import Query
from pellucid.testing.ledger import FACTS, make_call


@pytest.fixture
def site(tmp_path):
    return create_site(tmp_path / "site", node="node1")


def serve(site, count=3, **changes):
    recorder = app.start_recorder(site)
    context = recorder.add_context(FACTS)
    for _ in range(count):
        recorder.close_call(make_call(recorder.reserve(1, context), context=context, **changes))
    recorder.close()
    return recorder.source


def run(site, *words):
    result = CliRunner().invoke(command, [*words, "--site", str(site.root), "--json"], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value or 0, json.loads(result.output)


def human(site, *words):
    result = CliRunner().invoke(command, [*words, "--site", str(site.root)], standalone_mode=False)
    assert result.exception is None, result.exception
    return result.output


def opened(site):
    return contextlib.closing(app.open_ledger(site))


def test_an_event_of_a_command_is_an_entry_at_once(site):
    key = app.record_event(site, "build", {"name": "credit", "outcome": "built"})
    with opened(site) as ledger:
        assert parse_entry(ledger.reader.get(key)).data["name"] == "credit"
    assert os.listdir(site.ledger_folder / "journal") == []


def test_epochs_count_up_and_say_what_served(site):
    assert [serve(site), serve(site)] == ["node1/1/0", "node1/2/0"]
    app.integrate(site)
    with opened(site) as ledger:
        epochs = [
            parse_entry(ledger.reader.entry(f.index)).data for f in ledger.reader.find(Query(type="epoch"))
        ]
    newest = epochs[1]
    assert (newest["epoch"], newest["phase"], newest["config"]) == (2, "open", site.config_digest)
    assert (epochs[0]["phase"], epochs[0]["last"]) == ("closed", [3])
    assert (site.ledger_folder / "epoch").read_text() == "2\n"


def test_workers_of_one_start_share_an_epoch_and_each_is_counted(site):
    first = app.start_recorder(site, 0, workers=2)
    _, value = run(site, "complete")
    assert value["findings"] == ["node1/1/1: this worker has no entry"]
    second = app.start_recorder(site, 1, workers=2, epoch=1)
    assert (first.source, second.source) == ("node1/1/0", "node1/1/1")
    for recorder in (first, second):
        recorder.close_call(make_call(recorder.reserve(1), context=0))
        recorder.close()
    code, value = run(site, "complete")
    assert (code, [(part["worker"], part["last"]) for part in value["parts"]]) == (0, [(0, 1), (1, 1)])
    assert serve(site) == "node1/2/0"


def test_an_epoch_is_not_given_twice_when_the_start_was_cut_short(site, monkeypatch):
    monkeypatch.setattr("pellucid.ledger.epoch._write", lambda *_: (_ for _ in ()).throw(OSError("cut")))
    with pytest.raises(OSError, match="cut"):
        app.start_recorder(site)
    monkeypatch.undo()
    import gc

    gc.collect()  # the board that was made is its dead owner's now
    assert serve(site) == "node1/2/0"


def test_recording_nothing_is_chosen_by_the_configuration(site):
    text = (site.root / "pellucid.toml").read_text().replace('"journaled"', '"unsafe_record_nothing"')
    (site.root / "pellucid.toml").write_text(text)
    from pellucid.app.site import open_site

    site = open_site(site.root)
    recorder = app.start_recorder(site)
    assert isinstance(recorder, NothingRecorder)
    recorder.close_call(make_call(recorder.reserve(1)))
    recorder.close()
    code, value = run(site, "complete")
    assert (code, value["complete"], value["calls"]) == (0, True, 0)
    assert value["gaps"][0]["reason"] == "unsafe_record_nothing"


def wait_for_lock(site, child):
    clock, begin = SystemClock(), SystemClock().monotonic_ns()
    while not app.is_sequencing(site):
        assert child.poll() is None
        assert clock.monotonic_ns() - begin < 30e9
        clock.wait(0.02)


def test_the_sequencer_child_works_until_its_stdin_closes_and_holds_the_lock(site):
    child = subprocess.Popen(app.sequencer_command(site), stdin=subprocess.PIPE)
    try:
        wait_for_lock(site, child)
        recorder = app.start_recorder(site)
        key = recorder.event("alert", {"kind": "hello"})
        assert app.wait_integrated(site, key) >= 1
        assert app.integrate(site) == 0  # the child's
        with pytest.raises(UnavailableError):
            app.rebuild_index(site)
        recorder.close()
        child.stdin.close()
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
    with opened(site) as ledger:
        assert ledger.reader.find(Query(outcome="closed"))  # drained before it ended
    assert os.listdir(site.ledger_folder / "board") == []


def test_waiting_for_what_never_comes_ends(site):
    app.record_event(site, "read", {"what": "x"})
    with pytest.raises(NotFoundError):
        app.wait_integrated(site, "node1/9/9/9")


def test_the_clock_moves():
    clock = SystemClock()
    before = clock.monotonic_ns()
    clock.wait(0.0)
    assert clock.monotonic_ns() >= before


# -- the commands ---------------------------------------------------------------------------------


def test_show_get_prove(site, tmp_path):
    source = serve(site, personal={"address": "192.0.2.7", "trace_id": "abc"})
    code, value = run(site, "show", "--type", "call", "--trace", "abc", "--limit", "2")
    assert (code, value["size"], len(value["entries"])) == (0, 5, 2)
    assert value["entries"][0]["key"] == f"{source}/3"
    _, value = run(site, "get", f"{source}/1")
    assert (value["openings"], value["entry"]["id"], value["erased"]) == ("held", f"{source}/1", [])
    assert "192.0.2.7" not in json.dumps(value)
    _, value = run(site, "prove", f"{source}/1", "--out", str(tmp_path / "proof"))
    leaf = (tmp_path / "proof" / f"{value['index']:012d}.json").read_bytes()
    text = (tmp_path / "proof" / f"{value['index']:012d}.tlog-proof").read_text()
    head, _, note = text.partition("\n\n")
    version, index, *hashes = head.split("\n")
    assert (version, index) == ("c2sp.org/tlog-proof@v1", f"index {value['index']}")
    import base64

    checkpoint = parse_checkpoint(note.partition("\n\n")[0] + "\n")
    proof = [base64.b64decode(item) for item in hashes]
    verify_inclusion(hash_leaf(leaf), value["index"], checkpoint.size, proof, checkpoint.root)


def test_reading_values_is_an_entry(site):
    source = serve(site, personal={"address": "192.0.2.7"})
    _, value = run(site, "get", f"{source}/2", "--reveal")
    assert {"kind": "address", "value": "192.0.2.7"}.items() <= value["revealed"][-1].items()
    _, value = run(site, "show", "--type", "read")
    assert len(value["entries"]) == 1


def test_complete_and_fsck_hold_and_say_when_not(site):
    serve(site, count=260)
    assert run(site, "complete")[0] == 0
    code, value = run(site, "fsck")
    assert (code, value["clean"], value["entries"], value["calls"]) == (0, True, 262, 260)
    bundle = site.ledger_folder / "tile" / "entries" / "000"
    data = bundle.read_bytes()
    bundle.write_bytes(data.replace(b'"answered"', b'"refused!"', 1))
    code, value = run(site, "fsck")
    assert (code, value["findings"][0]["place"]) == (3, "entry 1")
    assert "FINDING  entry 1:" in human(site, "fsck")


def test_fsck_of_a_copy(site, tmp_path):
    serve(site)
    app.integrate(site)
    copy = tmp_path / "copy"
    shutil.copytree(site.ledger_folder / "tile", copy / "tile")
    shutil.copy(site.ledger_folder / "checkpoint", copy)
    assert run(site, "fsck", "--folder", str(copy))[0] == 0
    assert sorted(p.name for p in copy.iterdir()) == ["checkpoint", "tile"]


def test_a_missing_call_makes_complete_fail(site):
    recorder = app.start_recorder(site)
    recorder.reserve(1)
    recorder._board.release(1)  # a bug that loses a call
    recorder.close()
    code, value = run(site, "complete")
    assert (code, value["complete"]) == (3, False)
    assert "numbers 1 of 1 to 1 have no entry" in value["findings"][0]
    assert "MISSING" in human(site, "complete")


def test_erase_row_call_and_subject(site):
    source = serve(site, rows=2, personal={"subject": "anna", "address": "192.0.2.7"})
    app.integrate(site)
    why = ("--rule", "GDPR Art. 17", "--reason", "asked")
    _, value = run(site, "erase", f"{source}/1", "--row", "1", *why)
    _, got = run(site, "get", f"{source}/1")
    assert got["erased"] == [{"rows": "row 1", "by": value["erasure"]}]
    run(site, "erase", f"{source}/2", *why)
    assert run(site, "get", f"{source}/2")[1]["openings"] == "erased"
    assert run(site, "erase", "--subject", "anna", *why)[1]["calls"] == 2
    for n in (1, 2, 3):
        assert run(site, "get", f"{source}/{n}")[1]["openings"] == "erased"
    assert run(site, "fsck")[0] == 0
    assert "Every proof still holds" in human(site, "erase", f"{source}/3", *why)


def test_erase_refuses_what_it_cannot_mean(site):
    source = serve(site)
    key = app.record_event(site, "read", {"what": "x"})
    why = ("--rule", "r", "--reason", "y")
    for words in (
        (f"{source}/1", "--subject", "anna"),
        (),
        ("--subject", "anna", "--row", "0"),
        (f"{source}/1", "--row", "1"),
        (key,),
    ):
        with pytest.raises(UsageError):
            run(site, "erase", *words, *why)
    with pytest.raises(NotFoundError):
        run(site, "erase", f"{source}/99", *why)
    with pytest.raises(NotFoundError, match="subject 'nobody'"):  # mistyped: must not look erased
        run(site, "erase", "--subject", "nobody", *why)
    assert run(site, "show", "--type", "erasure")[1]["entries"] == []


def test_an_entry_is_found_by_its_number_too(site):
    source = serve(site)
    app.integrate(site)
    by_key = run(site, "get", f"{source}/2")[1]
    assert run(site, "get", str(by_key["index"]))[1] == by_key
    assert run(site, "prove", str(by_key["index"]))[1]["index"] == by_key["index"]
    with pytest.raises(NotFoundError, match="entry 999"):
        run(site, "get", "999")


def test_questions_badly_asked_are_said_so(site):
    serve(site)
    with pytest.raises(UsageError, match="type: expected one of"):
        run(site, "show", "--type", "cal")
    with pytest.raises(UsageError, match="verifier key"):
        run(site, "fsck", "--vkey", "junk")
    with pytest.raises(NotFoundError, match="expected a checkpoint"):  # of nothing, nothing holds
        run(site, "fsck", "--folder", str(site.root / "recipes"))
    assert "0 of 5 entries. Values are compared exactly" in human(site, "show", "--outcome", "refuesd")


def test_a_place_that_policy_and_configuration_name_gets_each_line_once(site):
    text = (site.root / "pellucid.toml").read_text()
    (site.root / "pellucid.toml").write_text(
        text.replace("sinks = []", 'sinks = ["stdout:", "file:all.jsonl"]')
    )
    assert list(sink_uris(open_site(site.root))) == ["stdout:#0", f"file:{site.root}/all.jsonl#1"]


def test_a_disk_too_full_to_note_who_fails_ends_no_sequencer(site, monkeypatch, capsys):
    def full(path, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with telling_failures(site) as tell:
        tell({"file:log#0": "OSError: no space"})
        assert read_failing(site) == {"file:log#0": "OSError: no space"}
        monkeypatch.setattr("pellucid.app.sinks.write_text", full)
        tell({})
    assert [json.loads(line)["failing"] for line in capsys.readouterr().err.splitlines()] == [
        {"file:log#0": "OSError: no space"}, {},
    ]  # fmt: skip
    assert read_failing(site) == {}


def test_status_says_how_far_everybody_is_and_since_when(site):
    with pytest.raises(NotFoundError, match="none yet"):
        run(site, "status")
    text = (site.root / "pellucid.toml").read_text()
    (site.root / "pellucid.toml").write_text(text.replace("sinks = []", 'sinks = ["file:all.jsonl"]'))
    site = open_site(site.root)
    serve(site)
    app.settle(site)
    with contextlib.closing(app.open_ledger(site)) as ledger:
        first = parse_entry(ledger.reader.entry(0)).time
    index, log, file = run(site, "status")[1]["followers"]
    assert index == {"name": "index", "position": 5, "behind": 0, "since": None, "failing": None}
    assert log["name"].startswith("stdout:")
    assert file == {
        "name": f"file:{site.root}/all.jsonl#1", "position": 0, "behind": 5, "since": first, "failing": None,
    }  # fmt: skip
    assert "5 entries, 5 published; no sequencer runs" in human(site, "status")
    with app.open_sequencer(site) as sequencer:
        sequencer.drain()
        assert app.is_sequencing(site)
    file = run(site, "status")[1]["followers"][2]
    assert (file["position"], file["behind"], file["since"]) == (5, 0, None)


def test_the_index_comes_back(site):
    serve(site)
    before = run(site, "show")[1]
    for path in site.ledger_folder.glob("index.db*"):
        path.unlink()
    assert run(site, "index")[1] == {"entries": 5}
    assert run(site, "show")[1] == before


def test_people_see_tables_and_nothing_wraps_a_proof(site):
    source = serve(site)
    assert "node1/1/0/3" in human(site, "show")
    assert "openings" in human(site, "get", f"{source}/1")
    assert "c2sp.org/tlog-proof@v1\nindex 1\n" in human(site, "prove", f"{source}/1")
    assert "What no log can know about itself" in human(site, "complete")
    assert "Every value is as it was signed" in human(site, "fsck")


def test_markup_in_values_stays_text(site):
    app.record_event(site, "alert", {"kind": "[bold red]boo[/bold red][link=http://x]"})
    text = human(site, "show")
    key = run(site, "show")[1]["entries"][0]["key"]
    assert "[bold red]boo" in human(site, "get", key)
    assert "\x1b" not in text


def test_an_auditor_without_the_logs_key_reads_a_copy_of_the_site(site, tmp_path):
    serve(site)
    app.integrate(site)
    (site.root / "keys" / "log.key").unlink()
    assert run(site, "fsck")[0] == 0
    assert run(site, "complete")[0] == 0
    assert run(site, "show")[1]["size"] == 5
    with pytest.raises(PellucidError):
        app.record_event(site, "read", {"what": "x"})
