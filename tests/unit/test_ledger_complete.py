from __future__ import annotations

import json

import pytest

from pellucid.core.times import format_time
from pellucid.errors import CompletenessError, FormatError
from pellucid.ledger.complete import LIMITS, complete, verify_complete

HOUR = 3600 * 10**9


def leaf(kind, key, data, time_ns=0):
    value = {
        "data": data, "datacontenttype": "application/json", "id": key, "source": "pellucid:n",
        "specversion": "1.0", "time": format_time(time_ns), "type": kind,
    }  # fmt: skip
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def begin(epoch, at=0, workers=1, worker=0):
    data = {"epoch": epoch, "phase": "open", "worker": worker, "workers": workers}
    return leaf("epoch", f"n/{epoch}/{worker}/e1", data, at)


def end(epoch, last, at=0, worker=0, **more):
    data = {"epoch": epoch, "last": [last], "phase": "closed", "worker": worker, **more}
    return leaf("epoch", f"n/{epoch}/{worker}/e2", data, at)


def call(epoch, n, at=0, worker=0, outcome="answered"):
    return leaf("call", f"n/{epoch}/{worker}/{n}", {"accepted": format_time(at), "outcome": outcome}, at)


def calls(epoch, *numbers, **more):
    return [call(epoch, n, **more) for n in numbers]


GOOD = [begin(1), *calls(1, 2, 1, 3), end(1, 3), begin(2), *calls(2, 1), end(2, 1)]


def test_what_is_whole_is_complete_and_says_what_it_cannot_know():
    result = complete(GOOD)
    assert verify_complete(result) is result
    assert (result.calls, result.findings, result.notes) == (4, (), ())
    assert result.limits == LIMITS


@pytest.mark.parametrize("index", [i for i, raw in enumerate(GOOD) if b'"call"' in raw])
def test_any_missing_call_is_found(index):
    result = complete(GOOD[:index] + GOOD[index + 1 :])
    assert len(result.findings) == 1
    assert "have no entry" in result.findings[0]
    with pytest.raises(CompletenessError, match="have no entry"):
        verify_complete(result)


@pytest.mark.parametrize(
    ("entries", "finding"),
    [
        ([begin(1), *calls(1, 1, 2, 2), end(1, 2)], "n/1/0: numbers 2 are closed twice"),
        ([begin(1), *calls(1, 1, 2, 5), end(1, 2)], "n/1/0: numbers 5 lie beyond its last, 2"),
        ([begin(1), end(1, 9)], "n/1/0: numbers 1-9 of 1 to 9 have no entry"),
        ([begin(1), *calls(1, 1, 3, 7), end(1, 8)], "numbers 2, 4-6, 8 of 1 to 8"),
        ([begin(2), end(2, 0)], "n: epochs 1 have no entry"),
        ([begin(1), end(1, 0), begin(4), end(4, 0)], "n: epochs 2-3 have no entry"),
        ([begin(1, workers=2), end(1, 0)], "n/1/1: this worker has no entry"),
    ],
)
def test_what_is_wrong_is_named(entries, finding):
    assert finding in "; ".join(complete(entries).findings)


def test_numbers_of_a_living_epoch_are_in_flight_not_missing():
    result = complete([begin(1), *calls(1, 1, 4)])
    assert result.is_complete
    assert result.notes == ("n/1/0: runs (or awaits recovery), numbers 1 to 4 seen, not closed: 2-3",)
    assert result.parts[0].open == [(2, 3)]


def test_recovered_epochs_and_gaps_are_told():
    gap = leaf("gap", "n/1/0/e3", {"epoch": 1, "worker": 0, "reason": "power_loss", "at_most": 7}, HOUR)
    entries = [begin(1), *calls(1, 1, outcome="unresolved"), gap, end(1, 1, recovered=True)]
    result = complete(entries)
    assert result.is_complete
    assert result.gaps[0]["at_most"] == 7
    assert result.notes == ("n/1/0: its owner died; 1 calls were closed as unresolved",)


def test_recording_nothing_is_no_finding_and_no_secret():
    gap = leaf("gap", "n/1/0/e2", {"epoch": 1, "worker": 0, "reason": "unsafe_record_nothing"})
    result = complete([begin(1), gap, end(1, 100)])
    assert result.is_complete
    assert "unsafe_record_nothing" in result.notes[0]


def test_a_period_takes_the_epochs_that_touch_it_and_counts_its_calls():
    entries = [
        begin(1, 0), *calls(1, 1, at=HOUR), end(1, 1, 2 * HOUR),
        begin(2, 3 * HOUR), *calls(2, 1, at=4 * HOUR), *calls(2, 3, at=5 * HOUR), end(2, 3, 6 * HOUR),
        begin(3, 7 * HOUR), *calls(3, 1, at=8 * HOUR),
    ]  # fmt: skip
    whole = complete(entries)
    assert whole.findings == ("n/2/0: numbers 2 of 1 to 3 have no entry",)
    early = complete(entries, 0, 2 * HOUR)
    assert (early.findings, early.calls, [p.epoch for p in early.parts]) == ((), 1, [1])
    late = complete(entries, 5 * HOUR, 9 * HOUR)
    assert (late.calls, [p.epoch for p in late.parts]) == (2, [2, 3])
    assert late.findings


def test_nothing_is_complete():
    assert complete([]).is_complete


def test_very_many_missing_numbers_stay_readable():
    result = complete([begin(1), *calls(1, *range(2, 200, 2)), end(1, 200)])
    assert len(result.findings[0]) < 300
    assert "more ranges" in result.findings[0]


@pytest.mark.parametrize("raw", [b"{}", b"not json"])
def test_what_is_no_entry_is_refused(raw):
    with pytest.raises(FormatError):
        complete([raw])


@pytest.mark.parametrize(
    "raw",
    [
        leaf("call", "n/1/0", {"outcome": "answered"}),
        leaf("call", "n/1/0/x", {}),
        leaf("call", "n/1/0/2", {"accepted": "yesterday"}),
        leaf("epoch", "n/1/0/e1", {"phase": "open"}),
        leaf("epoch", "n/1/0/e1", {"epoch": -1, "worker": 0, "workers": 1, "phase": "open"}),
        leaf("epoch", "n/1/0/e1", {"epoch": 1, "worker": 0, "phase": "closed", "last": []}),
        leaf("epoch", "n/1/0/e1", {"epoch": 1, "worker": 0, "phase": "closed", "last": ["1"]}),
        leaf("gap", "n/1/0/e1", {"reason": "unsafe_record_nothing"}),
    ],
)
def test_an_entry_that_cannot_be_counted_is_a_finding(raw):
    assert len(complete([raw]).findings) == 1


def test_huge_claims_do_not_cost_memory():
    """An entry from outside may claim any last number."""
    result = complete([begin(1), end(1, 10**15)])
    assert "1-1000000000000000 of 1 to" in result.findings[0]
