from __future__ import annotations

import io
import json

import pytest

from pellucid.core.entry import Formed
from pellucid.core.subject import Summary
from pellucid.errors import ConfigError, FormatError
from pellucid.ledger.follower import form_again
from pellucid.ledger.recorder import DoorRecorder
from pellucid.sinks import FIELDS, format_line, parse_fields
from pellucid.sinks.file import FileSink
from pellucid.sinks.stdout import StdoutSink
from pellucid.testing.clock import FakeClock
from pellucid.testing.ledger import FACTS, LedgerFolder, make_batch, make_call

HOSTILE = 'x"}\n{"type":"call","injected":true}\u2028\u0085\x1b[31m\x9b31m\0'


@pytest.fixture
def sinks(tmp_path):
    return {
        "stdout": StdoutSink(stream=io.StringIO(), position=tmp_path / "stdout.position"),
        "file": FileSink(tmp_path / "calls.jsonl"),
    }


@pytest.fixture
def ledger(tmp_path, sinks):
    ledger = LedgerFolder(tmp_path / "ledger", followers=sinks)
    yield ledger
    for sink in sinks.values():
        sink.close()
    ledger.close()


def serve(ledger, **changes):
    recorder = ledger.recorder()
    context = recorder.add_context({**FACTS, "precision": "FP32", "device": "cpu"})
    recorder.close_call(make_call(recorder.reserve(1), context=context, **changes))
    numbers = [recorder.reserve(1), recorder.reserve(1)]
    recorder.close_batch(make_batch(1, numbers, context=context))
    recorder.close()
    ledger.integrate()


def lines_of(sinks, name, tmp_path):
    text = sinks["stdout"]._stream.getvalue() if name == "stdout" else (tmp_path / "calls.jsonl").read_text()
    assert text.isascii()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("name", ["stdout", "file"])
def test_lines_say_what_operators_ask_for(ledger, sinks, tmp_path, name):
    serve(ledger, stages=(1, 2, 1_500_000, 4), personal={"address": "192.0.2.9", "trace_id": "abc"})
    lines = lines_of(sinks, name, tmp_path)
    assert [line["type"] for line in lines] == ["epoch", "call", "call", "call", "epoch"]
    line = lines[1]
    assert set(line) == {"index", "type", "call", *FIELDS}
    assert (line["call"], line["trace_id"], line["client_ip"]) == ("node1/1/0/1", "abc", "192.0.2.9")
    assert (line["model_name"], line["model_version"], line["input_size"]) == ("credit", "1", 80)
    assert line["input_hash"].startswith("hmac-sha256:")
    assert (line["output_label"], line["confidence"], line["inference_time_ms"]) == ("good", 0.75, 1.5)
    assert (line["precision_mode"], line["gpu_device"]) == ("FP32", "cpu")
    assert line["timestamp"].endswith("Z")


def test_many_rows_are_lists_and_very_many_are_a_root(ledger, sinks, tmp_path):
    serve(ledger, rows=2)
    serve(ledger, rows=17)
    lines = [line for line in lines_of(sinks, "file", tmp_path) if line["type"] == "call"]
    assert lines[0]["output_label"] == ["good", "good"]
    assert len(lines[0]["input_hash"]) == 2
    assert lines[3]["input_hash"].startswith("rfc6962:")


@pytest.mark.parametrize("name", ["stdout", "file"])
def test_nothing_from_a_request_becomes_structure(ledger, sinks, tmp_path, name):
    serve(ledger, personal={"address": HOSTILE, "trace_id": HOSTILE, "caller": HOSTILE}, trace=None)
    lines = lines_of(sinks, name, tmp_path)
    assert len(lines) == 5
    assert lines[1]["trace_id"] == HOSTILE
    assert "injected" not in lines[1]
    raw = sinks["stdout"]._stream.getvalue()
    assert raw.count("\n") == 5
    assert not set(raw) & {"\x1b", "\x9b", "\0", "\u2028", "\r"}


def test_only_chosen_fields_are_written(ledger, sinks, tmp_path):
    sinks["file"]._fields = parse_fields("timestamp, client_ip,execution_time_ms")
    serve(ledger)
    line = lines_of(sinks, "file", tmp_path)[1]
    assert set(line) == {"index", "type", "call", "timestamp", "client_ip", "execution_time_ms"}


def test_unknown_fields_and_options_are_refused():
    with pytest.raises(ConfigError, match="client_ip"):
        parse_fields("timestamp,shoe_size")
    with pytest.raises(ConfigError, match="fields, position"):
        StdoutSink.from_uri("stdout:?felds=timestamp")


def test_uris_of_the_examples_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind in (StdoutSink, FileSink):
        sink = kind.from_uri(kind.EXAMPLE_URI)
        assert sink.position() == 0
        assert sink._fields == ("timestamp", "model_name")
        sink.close()


@pytest.mark.parametrize("name", ["stdout", "file"])
def test_an_erased_call_gets_a_tombstone_and_no_values_afterwards(ledger, sinks, tmp_path, name):
    serve(ledger, personal={"address": "192.0.2.9"})
    with DoorRecorder(ledger.root, "node1", clock=FakeClock()) as door:
        door.event("erasure", {"call": "node1/1/0/1", "rows": [], "rule": "x", "reason": "y"})
    ledger.integrate()
    lines = lines_of(sinks, name, tmp_path)
    assert [line for line in lines if line["type"] == "tombstone"] == [
        {"type": "tombstone", "call": "node1/1/0/1"}
    ]
    ledger.integrate()
    assert lines_of(sinks, name, tmp_path) == lines  # told once
    late = StdoutSink(stream=io.StringIO())
    ledger.followers["late"] = late
    ledger.integrate()
    replayed = [json.loads(line) for line in late._stream.getvalue().splitlines()]
    (call,) = [line for line in replayed if line["call"] == "node1/1/0/1" and line["type"] == "call"]
    assert (call["client_ip"], call["output_label"]) == (None, None)


def test_positions_survive(ledger, sinks, tmp_path):
    serve(ledger)
    size = ledger.reader.size()
    assert StdoutSink(position=tmp_path / "stdout.position").position() == size
    sinks["file"].close()
    again = FileSink(tmp_path / "calls.jsonl")
    assert again.position() == size
    again.close()


def test_standard_output_begins_a_new_line_where_the_last_process_was_killed_within_one(ledger, tmp_path):
    class Killed(io.StringIO):
        def write(self, text):
            super().write(text[:40])
            raise KeyboardInterrupt

    torn = Killed()
    sink = StdoutSink(stream=torn, position=tmp_path / "position")
    serve(ledger)
    entries = [form_again(raw, ledger.vault) for raw in ledger.entries()]
    with pytest.raises(KeyboardInterrupt):
        sink.apply(0, entries)
    for begins_anew in (True, False):
        stream = io.StringIO()
        sink = StdoutSink(stream=stream, position=tmp_path / "position")
        sink.apply(0, entries)
        lines = (torn.getvalue() + stream.getvalue()).split("\n")
        assert [json.loads(line)["index"] for line in lines[1:-1]] == [0, 1, 3, 4, 5] if begins_anew else True
        assert stream.getvalue().startswith("\n") == begins_anew


def test_the_file_itself_says_how_far_it_is(ledger, sinks, tmp_path):
    """Killed between the line and the position, or within a line: each entry is there once."""
    serve(ledger)
    sinks["file"].close()
    (tmp_path / "calls.jsonl.position").write_text("0\n")
    with open(tmp_path / "calls.jsonl", "ab") as file:
        file.write(b'{"index":99,"type":"ca')
    ledger.followers["file"] = FileSink(tmp_path / "calls.jsonl")
    serve(ledger)
    lines = lines_of(sinks, "file", tmp_path)
    indices = [line["index"] for line in lines]
    assert indices == sorted(set(indices))
    assert len(lines) == 10
    ledger.followers["file"].close()


def test_a_position_that_is_none_is_an_error(tmp_path):
    (tmp_path / "p").write_text("ten")
    with pytest.raises(FormatError):
        StdoutSink(position=tmp_path / "p")


def test_a_batch_gives_no_line_of_its_own(ledger):
    assert format_line(0, Formed("k", "batch", b"", None, (), Summary(0, "", "", "", "", "")), FIELDS) is None
