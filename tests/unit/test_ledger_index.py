"""The index finds what a scan of the whole log finds, and can be lost."""

from __future__ import annotations

import pytest

from pellucid.errors import FormatError, NotFoundError
from pellucid.indexes.sqlite import SqliteIndex
from pellucid.ledger.reader import LedgerReader
from pellucid.ports import Query
from pellucid.testing.ledger import FACTS, LedgerFolder, make_batch, make_call


@pytest.fixture
def ledger(tmp_path):
    ledger = LedgerFolder(tmp_path / "ledger", durable=False)
    recorder = ledger.recorder()
    context = recorder.add_context(FACTS)
    other = recorder.add_context({**FACTS, "model": "digits", "package": "sha256:dd"})
    for n, subject in enumerate(["anna", "bert", "anna"]):
        personal = {"subject": subject, "trace_id": f"foreign-{n}"}
        recorder.close_call(make_call(recorder.reserve(1), context=context, personal=personal))
    recorder.close_call(
        make_call(recorder.reserve(1), context=other, outcome="failed", error="build", trace="own-1", rows=2)
    )
    recorder.close_batch(make_batch(1, [recorder.reserve(1), recorder.reserve(1)], context=other))
    recorder.event("load", {"model": "credit", "version": "1", "verdict": "allowed", "package": "sha256:aa"})
    recorder.event("build", {"name": "credit", "version": "2", "outcome": "built", "package": "sha256:bb"})
    recorder.event("policy", {"name": "credit", "digest": "sha256:cc"})
    recorder.close()
    ledger.integrate()
    yield ledger
    ledger.close()


QUERIES = [
    Query(), Query(limit=2), Query(limit=2, newest_first=False), Query(key="node1/1/0/2"),
    Query(trace="foreign-1"), Query(trace="own-1"), Query(type="call"), Query(type="batch"),
    Query(model="digits"), Query(label="good"), Query(outcome="failed"), Query(outcome="allowed"),
    Query(outcome="closed"), Query(subject="anna"), Query(package="sha256:dd"), Query(key="none"),
    Query(type="build", model="credit"), Query(model="credit"),
    Query(since_ns=10**18 + 1001, until_ns=10**18 + 1003), Query(type="call", model="credit", subject="bert"),
]  # fmt: skip


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_index_and_scan_agree(ledger, query):
    scan = LedgerReader(ledger.store, None, ledger.vault, ledger.vkey)
    assert ledger.reader.find(query) == scan.find(query)


def test_every_query_of_the_list_but_one_finds_something(ledger):
    empty = [query for query in QUERIES if not ledger.reader.find(query)]
    assert empty == [Query(key="none")]


def test_a_build_is_found_by_the_name_of_its_model(ledger):
    found = {(row.type, row.model, row.version) for row in ledger.reader.find(Query(model="credit"))}
    assert {("build", "credit", "2"), ("load", "credit", "1")} <= found
    assert "policy" not in {kind for kind, _, _ in found}


def test_a_lost_index_comes_back_the_same(ledger, tmp_path):
    before = ledger.reader.find(Query())
    ledger.index.clear()
    assert ledger.reader.find(Query()) == []
    ledger.integrate()
    assert ledger.reader.find(Query()) == before
    fresh = SqliteIndex.from_uri(f"sqlite:{tmp_path / 'fresh.db'}")
    ledger.integrate(followers={"fresh": fresh})
    assert fresh.find(Query()) == before
    fresh.close()


def test_the_same_again_changes_nothing_and_a_hole_is_refused(ledger):
    from pellucid.ledger.follower import form_again

    before = ledger.reader.find(Query())
    formed = [form_again(raw, ledger.vault) for raw in ledger.entries()]
    ledger.index.apply(2, formed[2:5])
    assert ledger.reader.find(Query()) == before
    assert ledger.index.position() == len(formed)
    with pytest.raises(FormatError, match="next"):
        ledger.index.apply(len(formed) + 1, formed[:1])


def test_names_from_outside_are_values(ledger):
    for text in ("' OR 1=1 --", '"', "%", "foreign-_"):
        assert ledger.reader.find(Query(trace=text)) == []


def test_an_index_that_names_another_entry_is_not_believed(ledger):
    ledger.index._db.execute("UPDATE rows SET key='node1/1/0/1' WHERE idx=5")
    with pytest.raises(NotFoundError, match="another entry"):
        ledger.reader.get("node1/1/0/1")


def test_the_reader_checks_what_it_is_asked_for(ledger):
    size = ledger.reader.size()
    for index in (-1, size):
        with pytest.raises(NotFoundError):
            ledger.reader.entry(index)
    assert list(ledger.reader.entries(size, size + 5)) == []
    assert list(ledger.reader.entries(2, 4)) == ledger.entries()[2:4]
    assert ledger.reader.origin == ledger.origin
    assert LedgerReader(ledger.store, None, None, ledger.vkey).openings("node1/1/0/1") == ()
