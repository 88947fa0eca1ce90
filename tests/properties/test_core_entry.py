"""Entries: formed the same way every time, opened by their openings, and silent about people."""

from __future__ import annotations

import hashlib
import json
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core import canonical, entry, record
from pellucid.core.decision import decide
from pellucid.core.expand import expand
from pellucid.core.merkle.hashing import hash_leaf, root_of
from pellucid.core.subject import summarise
from pellucid.core.tensor import Tensor, row_digest
from pellucid.core.times import parse_time
from pellucid.errors import FormatError

WRITER = entry.Writer("node-a/3/0")
FACTS = {
    "model": "credit",
    "version": "1.0.0",
    "package": "sha256:" + "1" * 64,
    "engine": "sha256:" + "2" * 64,
    "precision": "FP32",
}
CONTEXTS = {1: record.Context(1, FACTS), 2: record.Context(2, FACTS | {"commitment": "plain"})}
TEXT = st.text(max_size=30)
DIGESTS = st.binary(min_size=32, max_size=32)
ROWS = st.builds(
    record.Row,
    DIGESTS,
    DIGESTS | st.just(b""),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.none() | st.just("0.731000"),
    st.none() | st.binary(max_size=20),
).map(lambda row: row if row.output else record.Row(row.input))


def subject_key(subject: str) -> bytes:
    return hashlib.sha256(b"subject" + subject.encode("utf-8", "surrogatepass")).digest()


@st.composite
def calls(draw, context=None, rows=4):
    made = tuple(draw(st.lists(ROWS, max_size=rows)))
    return record.Call(
        n=draw(st.integers(0, 2**40)),
        context=context or draw(st.sampled_from([1, 2])),
        outcome=draw(st.sampled_from(record.OUTCOMES)),
        error=draw(st.none() | st.just("deadline")),
        accepted_ns=draw(st.integers(0, 2**61)),
        closed_ns=draw(st.integers(0, 2**61)),
        stages=(1, 2, 3, 6),
        slot=draw(st.integers(-1, 7)),
        bucket=8,
        rows=made,
        shapes=((len(made), 20),),
        nbytes=(80, 8),
        seed=draw(DIGESTS),
        personal=draw(st.dictionaries(st.sampled_from(record.PERSONAL), TEXT, max_size=6)),
        trace=None,
    )


def form(item: record.Record) -> list[entry.Formed]:
    return expand(item, writer=WRITER, contexts=CONTEXTS, subject_keys=subject_key)


def key_of(formed: entry.Formed, opening: entry.Opening) -> bytes:
    """The key an opening says, or the one that derives from its subject's key."""
    if opening.key or formed.subject is None:
        return opening.key
    return entry.subject_commitment_key(subject_key(formed.subject), formed.key, opening.kind, opening.row)


def digest_of(call: record.Call, opening: entry.Opening) -> bytes:
    if opening.kind == "input":
        return call.rows[opening.row].input
    if opening.kind == "output":
        assert opening.digest is not None
        return entry.output_digest(opening.digest, opening.label, opening.confidence)
    assert opening.value is not None
    return entry.text_digest(opening.value.decode("utf-8", "surrogatepass"))


def commitments(data: dict) -> dict[tuple[str, int], str]:
    found = {(kind, -1): value for kind, value in data["personal"].items()}
    for number, row in enumerate(data["rows"]):
        found |= {(kind, number): value for kind, value in row.items() if value is not None}
    return found


@given(calls())
def test_records_come_back_from_the_wire(call):
    batch = record.Batch(1, 1, 8, 5, 6, (call,))
    event = record.Event(1, "read", 5, {"what": ["call"]}, b"seed", {"subject": "anna"})
    for item in (call, batch, event, CONTEXTS[1]):
        if not any("\ud800" <= c <= "\udfff" for c in repr(item)) and "\\ud" not in repr(item):
            assert record.decode_record(record.encode_record(item)) == item


@given(calls())
def test_forming_is_deterministic_and_readable(call):
    (formed,) = form(call)
    assert [formed] == form(call)
    assert canonical.encode(canonical.decode(formed.entry)) == formed.entry
    read = entry.parse_entry(formed.entry)
    assert (read.id, read.type, read.data["call"]) == (formed.key, "call", formed.key)
    assert read.raw == formed.entry


TEXTS = st.dictionaries(
    st.sampled_from(["model", "name", "version", "package", "outcome", "verdict", "phase", "trace"]),
    st.sampled_from(["", "a", "b", 7, None]),
)


@given(calls(), st.sampled_from(sorted(entry.TYPES)), TEXTS, st.integers(0, 2**61))
def test_what_followers_are_told_is_what_the_entry_says(call, kind, data, time_ns):
    batch = record.Batch(7, 1, 8, 5, 6, (call, msgspec.structs.replace(call, n=call.n + 1)))
    for formed in [*form(call), *form(batch), *form(record.Event(1, kind, time_ns, data))]:
        read = entry.parse_entry(formed.entry)
        assert (formed.key, formed.type) == (read.id, read.type)
        assert formed.summary == summarise(read.type, parse_time(read.time), read.data)


@given(calls())
def test_openings_open_exactly_their_commitments(call):
    (formed,) = form(call)
    wanted = commitments(entry.parse_entry(formed.entry).data)
    for opening in formed.openings:
        commitment = wanted[opening.kind, opening.row]
        if commitment.startswith("sha256:"):
            continue
        del wanted[opening.kind, opening.row]
        key, digest = key_of(formed, opening), digest_of(call, opening)
        assert entry.is_opening(commitment, key, digest)
        assert not entry.is_opening(commitment, hashlib.sha256(key).digest(), digest)
        assert not entry.is_opening(commitment, key, hashlib.sha256(digest).digest())
    for (kind, row), commitment in wanted.items():  # plain: anyone with the data opens it
        source = call.rows[row]
        digest = source.input if kind == "input" else entry.output_digest(
            source.output, source.label, source.confidence
        )  # fmt: skip
        assert call.context == 2
        assert entry.is_opening(commitment, b"", digest)


@given(calls())
def test_every_commitment_of_a_call_has_its_own_key(call):
    (formed,) = form(call)
    keys = [key for o in formed.openings if (key := key_of(formed, o))]
    assert len(set(keys)) == len(keys)


@given(st.data())
def test_nothing_about_a_person_stands_in_the_entry(data):
    secret = data.draw(st.text('éüXYZ"\\', min_size=8, max_size=20))
    kinds = data.draw(st.lists(st.sampled_from(record.PERSONAL), min_size=1, unique=True))
    call = data.draw(calls(context=1))
    row = record.Row(
        hashlib.sha256(secret.encode()).digest(), hash_leaf(secret.encode()), secret, secret, secret.encode()
    )
    call = msgspec.structs.replace(call, personal=dict.fromkeys(kinds, secret), rows=(row,))
    (formed,) = form(call)
    hidden = [
        secret,
        json.dumps(secret)[1:-1],
        secret.encode().hex(),
        row.input.hex(),
        row.output.hex(),
        call.seed.hex(),
    ]
    hidden += [canonical.encode(secret).decode()[1:-1], hashlib.sha256(secret.encode()).hexdigest()]
    hidden += [key_of(formed, o).hex() for o in formed.openings]
    text = formed.entry.decode()
    assert not [value for value in hidden if value in text]


@given(calls(context=1).filter(lambda c: c.rows), TEXT, TEXT)
def test_with_a_subject_all_keys_hang_on_the_subjects_key(call, subject, other):
    call = msgspec.structs.replace(call, personal=call.personal | {"subject": subject})
    (formed,) = form(call)
    assert formed.subject == subject
    assert all(o.key == b"" for o in formed.openings), "no key is kept beside the subject's"
    shredded = expand(call, writer=WRITER, contexts=CONTEXTS, subject_keys=lambda _: bytes(32))[0]
    before, after = (commitments(entry.parse_entry(f.entry).data) for f in (formed, shredded))
    assert not set(before.values()) & set(after.values())
    moved = msgspec.structs.replace(call, n=call.n + 1)
    assert not set(before.values()) & set(commitments(entry.parse_entry(form(moved)[0].entry).data).values())


@given(st.lists(calls(context=1), min_size=2, max_size=4))
def test_neighbours_share_a_batch_entry_and_learn_nothing_of_each_other(neighbours):
    neighbours = [msgspec.structs.replace(c, n=n, slot=n) for n, c in enumerate(neighbours)]
    batch, *formed = form(record.Batch(7, 1, 8, 5, 6, tuple(neighbours)))
    assert (batch.type, batch.key, batch.openings) == ("batch", "node-a/3/0/b7", ())
    digest = "sha256:" + hashlib.sha256(batch.entry).hexdigest()
    rows = entry.parse_entry(batch.entry).data["rows"]
    for one in formed:
        data = entry.parse_entry(one.entry).data
        assert data["batch"] == digest
        assert not [
            other.key for other in formed if other is not one and f'"{other.key}"' in one.entry.decode()
        ]
        for number, row in enumerate(data["rows"]):
            assert {**row, "slot": data["slot"] + number} in rows


@given(calls())
def test_alone_in_its_batch_a_call_is_just_a_call(call):
    assert form(record.Batch(7, 1, 8, 5, 6, (call,))) == form(call)


@pytest.mark.parametrize("count", [entry.ROWS_IN_CALL_MAX, entry.ROWS_IN_CALL_MAX + 1, 300])
def test_many_rows_become_a_tree_that_a_row_proves(count):
    rows = tuple(record.Row(hash_leaf(b"i%d" % n), hash_leaf(b"o%d" % n)) for n in range(count))
    call = record.Call(
        1, 1, "answered", None, 5, 6, (1, 2, 3, 6), 0, 512, rows, ((count, 20),), (1, 1), b"s" * 32, {}
    )
    (formed,) = form(call)
    data = entry.parse_entry(formed.entry).data
    assert data["row_count"] == count
    if count <= entry.ROWS_IN_CALL_MAX:
        assert len(data["rows"]) == count
        return
    keys = {(o.kind, o.row): o.key for o in formed.openings}
    leaves = [
        entry.rows_leaf({
            "input": entry.commit(keys["input", n], row.input),
            "output": entry.commit(keys["output", n], entry.output_digest(row.output, None, None)),
        })
        for n, row in enumerate(rows)
    ]  # fmt: skip
    assert data["rows_tree"] == {"root": root_of([hash_leaf(leaf) for leaf in leaves]).hex(), "size": count}


def test_label_and_confidence_cannot_trade_places():
    seen = {
        entry.output_digest(b"r" * 32, a, b) for a in (None, "", "x", "xy") for b in (None, "", "x", "xy")
    }
    assert len(seen) == 16


@pytest.mark.parametrize("data", [{"x": 0.5}, {"a b": 1}, {"x": 2**53}, {"x": "y" * 65_535}, {"x": b"raw"}])
def test_an_event_outside_the_profile_or_too_large_is_refused(data):
    with pytest.raises(FormatError):
        form(record.Event(1, "load", 5, data))


def test_a_context_outside_the_profile_or_unknown_is_refused():
    with pytest.raises(FormatError):
        form(record.Context(3, {"threads": 0.5}))
    with pytest.raises(FormatError, match="known context"):
        form(record.Call(1, 9, "failed", None, 5, 6, (0, 0, 0, 0), -1, 0, (), (), (0, 0), b"", {}))
    assert form(CONTEXTS[1]) == []


def test_a_commitment_to_compare_with_may_be_any_text():
    assert not entry.is_opening("hmac-sha256:é\ud800", b"k" * 32, b"d" * 32)


@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.binary(max_size=9)),
        max_size=3,
    )
)
def test_kept_outputs_come_back(parts):
    tensors = [Tensor(name, "UINT8", (1, len(data)), data) for name, data in parts]
    assert entry.decode_outputs(entry.encode_outputs(tensors)) == tensors


@pytest.mark.parametrize("change", [
    {"specversion": "0.3"}, {"type": "nonsense"}, {"type": ["call"]}, {"data": None}, {"id": 5},
    {"time": None},
])  # fmt: skip
def test_other_objects_are_no_entries(change):
    (formed,) = form(record.Event(1, "load", 5, {}))
    entry.parse_entry(formed.entry)
    with pytest.raises(FormatError):
        entry.parse_entry(canonical.encode(canonical.decode(formed.entry) | change))
    with pytest.raises(FormatError):
        entry.parse_entry(b"[]")


def test_formed_is_a_value():
    (formed,) = form(record.Event(1, "load", 5, {}))
    assert msgspec.structs.replace(formed) == formed


@given(st.lists(st.floats(width=32), min_size=2, max_size=2), st.booleans())
def test_what_a_writer_left_out_is_made_from_the_kept_outputs(scores, decides):
    decision = {"kind": "argmax", "output": "y", "labels": ["a", "b"]} if decides else {}
    tensor = Tensor("y", "FP32", (1, 2), struct.pack("<2f", *scores))
    kept = entry.encode_outputs([tensor])
    short = record.Row(b"i" * 32, value=kept)
    label, confidence = decide(decision, [tensor])
    whole = record.Row(b"i" * 32, row_digest([tensor]), label, confidence, kept)
    assert entry.complete_row(short, decision) == whole
    assert entry.complete_row(whole, {}) is whole
    contexts = {1: record.Context(1, FACTS | {"decision": decision})}
    first, second = (
        expand(call, writer=WRITER, contexts=contexts, subject_keys=subject_key)
        for call in (closed(short), closed(whole))
    )
    assert first == second
    assert b"decision" not in first[0].entry


def closed(row):
    stages = (1, 2, 3, 6)
    return record.Call(1, 1, "answered", None, 5, 6, stages, 0, 8, (row,), ((1, 20),), (80, 8), b"s" * 32, {})
