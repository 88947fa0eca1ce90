"""``pellucid why``: what changed before a moment, from the ledger alone.

Changes are entries: loads and unloads, starts and ends of serving processes (with the digests of
configuration and policy), recycles, alerts. Those of one start belong together. Each is held against
the calls before it (back to the change before) and after it (up to the next, or to the moment).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from pellucid.app.baseline import baselines
from pellucid.app.clock import SystemClock
from pellucid.app.ledger import open_ledger, record_event, settle
from pellucid.core.entry import Entry, parse_trusted
from pellucid.core.slow import Slow, find_slow
from pellucid.core.times import format_time, parse_time
from pellucid.core.why import Change, Weighed, Window, find_cause, make_window
from pellucid.errors import NotFoundError
from pellucid.ports import Query

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.ledger.reader import LedgerReader

SPAN_S: Final = 86_400.0  # how far back changes are looked for
CALLS_MAX: Final = 2_000  # limit: calls on either side of a change
CHANGES_MAX: Final = 20  # limit: newest changes that are weighed
TOGETHER_NS: Final = 30 * 10**9  # limit: entries of one start lie closer together
LATELY: Final = 5  # where nothing changed: the last fifth of the calls against the others
_OF_MODEL: Final = ("load", "unload", "recycle", "alert")
_TERMS: Final = {
    "batch_delay_us": ("batch delay", "us"),
    "queue_max": ("queue limit", "calls"),
    "workers": ("workers", ""),
}


def why(site: Site, model: str, *, at_ns: int | None = None, span_s: float = SPAN_S) -> dict[str, Any]:
    """What made a model slow at a moment, most likely cause first; the reading is an entry.

    Args:
        at_ns: The moment, nanoseconds since 1970; now by default.
        span_s: How far back to look.

    Raises:
        NotFoundError: The ledger knows neither calls nor loads of the model before the moment.
    """
    settle(site)
    at_ns = SystemClock().now_ns() if at_ns is None else at_ns
    with closing(open_ledger(site)) as ledger:
        told = _Teller(ledger.reader, model, at_ns, int(span_s * 1e9)).tell()
    return told | {"entry": record_event(site, "read", {"what": "why", "model": model, "at": told["at"]})}


def why_call(site: Site, key: str) -> dict[str, Any]:
    """Where the time of one call went: the model, the queue or the device; the reading is an entry.

    Raises:
        NotFoundError: No such call.
    """
    settle(site)
    with closing(open_ledger(site)) as ledger:
        entry = parse_trusted(ledger.reader.get(key))
    if entry.type != "call":
        raise NotFoundError(f"{key}: expected a call, got an entry of type {entry.type}")
    slow = _slow(site, entry.data)
    read = record_event(site, "read", {"what": "why", "call": key})
    return slow.record() | {"call": key, "mark": entry.data.get("mark"), "entry": read}


def _slow(site: Site, data: Mapping[str, Any]) -> Slow:
    named = (data.get("mark") or {}).get("baseline")
    found = baselines(site, str(data.get("model"))) if named else []
    median = next((each.baseline.median_ns for each in found if each.baseline.key == named), None)
    return find_slow(data, median)


class _Teller:
    """Reads one model's history before a moment."""

    def __init__(self, reader: LedgerReader, model: str, at_ns: int, span_ns: int) -> None:
        self._reader, self._model, self._at, self._since = reader, model, at_ns, max(0, at_ns - span_ns)

    def tell(self) -> dict[str, Any]:
        changes = list(self._changes())
        lately, before = self._drift(changes[0].time_ns if changes else self._since)
        weighed = list(self._weigh(changes))
        told = format_time(self._at)
        if not lately.calls and not self._is_known():
            raise NotFoundError(
                f"model {self._model!r:.80}: expected calls or loads until {told}, got none",
                hint="names are as in: pellucid ledger show --type load",
            )
        cause, chosen = find_cause(weighed, lately, before)
        return {
            "model": self._model, "at": told, "since": format_time(self._since),
            "cause": cause, "stage": chosen.stage if chosen else None,
            "entries": list(chosen.change.entries) if chosen else [],
            "changes": [each.record() for each in weighed],
            "lately": lately.record(), "before": before.record(),
        }  # fmt: skip

    def _is_known(self) -> bool:
        kinds = ("load", "call")
        return any(
            self._reader.find(Query(type=kind, model=self._model, until_ns=self._at, limit=1))
            for kind in kinds
        )

    # -- calls ------------------------------------------------------------------------------------

    def _calls(self, since_ns: int, until_ns: int, *, newest_first: bool = True) -> list[dict[str, Any]]:
        query = Query(
            type="call", model=self._model, since_ns=since_ns, until_ns=until_ns, limit=CALLS_MAX,
            newest_first=newest_first,
        )  # fmt: skip
        found = [self._entry(row.index).data for row in self._reader.find(query)]
        return [data for data in found if data.get("slot") != -1]

    def _drift(self, since_ns: int) -> tuple[Window, Window]:
        calls = self._calls(since_ns, self._at)
        few = len(calls) // LATELY
        return make_window(calls[:few]), make_window(calls[few:])

    def _weigh(self, changes: Sequence[Change]) -> Iterator[Weighed]:
        """Changes, newest first, each between its neighbours."""
        until = self._at
        for number, change in enumerate(changes):
            since = changes[number + 1].time_ns if number + 1 < len(changes) else self._since
            before = make_window(self._calls(since, change.time_ns - 1))
            yield Weighed(change, before, make_window(self._calls(change.time_ns, until)))
            until = change.time_ns - 1

    def _entry(self, index: int) -> Entry:
        return parse_trusted(self._reader.entry(index))

    # -- changes ----------------------------------------------------------------------------------

    def _changes(self) -> Iterator[Change]:
        """Newest first; each made of the entries of one start, or of one entry."""
        for number, group in enumerate(_groups(self._happened(), self._was_called)):
            if number == CHANGES_MAX:
                return
            yield self._change(group)

    def _was_called(self, since: Entry, until: Entry) -> bool:
        query = Query(
            type="call", model=self._model, since_ns=parse_time(since.time), until_ns=parse_time(until.time),
            limit=1,
        )  # fmt: skip
        return bool(self._reader.find(query))

    def _happened(self) -> list[Entry]:
        """Entries that change something for the model, oldest first."""
        queries = [
            Query(type=kind, model=self._model, since_ns=self._since, until_ns=self._at) for kind in _OF_MODEL
        ]
        queries += [Query(type="epoch", since_ns=self._since, until_ns=self._at)]
        rows = {row.index for query in queries for row in self._reader.find(query)}
        return [self._entry(index) for index in sorted(rows)]

    def _change(self, group: Sequence[Entry]) -> Change:
        loads = [entry for entry in group if entry.type == "load"]
        opened = [entry for entry in group if entry.type == "epoch" and entry.data.get("phase") == "open"]
        first = loads[0] if loads else group[0]
        texts = [*self._loaded(loads), *_started(opened), *self._settings(opened), *_others(group)]
        approved = tuple(self._approvals(loads[-1].data)) if loads else ()
        keys = tuple(entry.id for entry in group[:16])
        return Change(parse_time(first.time), first.time, texts[0], tuple(texts[1:]), approved, keys)

    def _loaded(self, loads: Sequence[Entry]) -> Iterator[str]:
        if not loads:
            return
        data, previous = loads[-1].data, self._before("load", loads[0], model=self._model)
        old = previous.data if previous else {}
        buckets = f"buckets up to {max(data.get('buckets') or [1])}"
        if old and max(old.get("buckets") or [1]) != max(data.get("buckets") or [1]):
            buckets += f" (before: {max(old.get('buckets') or [1])})"
        version = f"{data.get('model')} {data.get('version')}"
        again = " again" if old and old.get("package") == data.get("package") else ""
        yield f"load of {version}{again} with {', '.join([buckets, *_terms(old, data)])}"
        if old and old.get("version") != data.get("version"):
            yield f"version {old.get('version')} -> {data.get('version')}"
        for name in ("precision", "device", "threads", "environment"):
            if old and old.get(name) != data.get(name):
                yield f"{name} {old.get(name)} -> {data.get(name)}"

    def _settings(self, opened: Sequence[Entry]) -> Iterator[str]:
        if not opened:
            return
        previous = self._before("epoch", opened[0], outcome="open")
        for name in ("config", "policy", "version") if previous else ():
            old, new = (entry.data.get(name) for entry in (previous, opened[-1]) if entry)
            if old != new:
                word = "pellucid" if name == "version" else name
                yield f"{word} {_short(old)} -> {_short(new)}"

    def _before(self, kind: str, entry: Entry, *, model: str = "", outcome: str = "") -> Entry | None:
        until = parse_time(entry.time) - 1
        found = self._reader.find(Query(type=kind, model=model, outcome=outcome, until_ns=until, limit=1))
        return self._entry(found[0].index) if found else None

    def _approvals(self, load: Mapping[str, Any]) -> Iterator[str]:
        found = self._reader.find(Query(type="approval", package=str(load.get("package")), limit=8))
        for row in found:
            data = self._entry(row.index).data
            yield f"{data.get('role')} ({data.get('kind')}, {row.key})"


def _groups(entries: Sequence[Entry], was_called: Callable[[Entry, Entry], bool]) -> list[list[Entry]]:
    """Entries of one start, or of one load by all processes, together; newest group first."""
    groups: list[list[Entry]] = []
    for entry in entries:
        last = groups[-1] if groups else []
        together = last and _is_start(entry) and _is_start(last[-1]) and _gap(last[0], entry) <= TOGETHER_NS
        if together and not _ends_one_of(entry, last) and not _loads_anew(entry, last, was_called):
            last.append(entry)
        else:
            groups.append([entry])
    return groups[::-1]


def _ends_one_of(entry: Entry, group: Sequence[Entry]) -> bool:
    """True for the end of a process that the group itself started: what follows is another start."""
    if entry.type != "epoch" or entry.data.get("phase") != "closed":
        return False
    source = entry.id.rpartition("/")[0]
    return any(each.type == "load" and each.id.rpartition("/")[0] == source for each in group)


def _loads_anew(entry: Entry, group: Sequence[Entry], was_called: Callable[[Entry, Entry], bool]) -> bool:
    """True for a load by a process of the group that has loaded the model and answered since."""
    source = entry.id.rpartition("/")[0]
    before = [each for each in group if each.type == "load" and each.id.rpartition("/")[0] == source]
    return entry.type == "load" and bool(before) and was_called(before[-1], entry)


def _is_start(entry: Entry) -> bool:
    """Ends of the processes before belong to the start that follows them."""
    return entry.type in ("load", "epoch", "unload", "recycle")


def _gap(one: Entry, other: Entry) -> int:
    return parse_time(other.time) - parse_time(one.time)


def _terms(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Settings of serving that a load names and that differ from the load before."""
    before, now = old.get("serving") or {}, new.get("serving") or {}
    for name, (word, unit) in _TERMS.items():
        if before and before.get(name) != now.get(name):
            yield f"{word} {before.get(name)} -> {now.get(name)} {unit}".rstrip()


def _started(opened: Sequence[Entry]) -> Iterator[str]:
    if opened:
        sources = ", ".join(entry.id.rpartition("/")[0] for entry in opened[:4])
        yield f"start of {len(opened)} serving process{'es' if len(opened) > 1 else ''} ({sources})"


def _others(group: Sequence[Entry]) -> Iterator[str]:
    for entry in group:
        data = entry.data
        if entry.type == "epoch" and data.get("phase") == "closed":
            how = f"died, {data.get('unresolved')} calls unresolved" if data.get("recovered") else "ended"
            yield f"serving process {entry.id.rpartition('/')[0]} {how}"
        elif entry.type == "recycle":
            yield f"recycle of a serving process: {data.get('reason')}"
        elif entry.type == "unload":
            yield f"unload of {data.get('model')} {data.get('version')}"
        elif entry.type == "alert":
            yield f"alert {data.get('kind') or data.get('reason')}"


def _short(digest: Any) -> str:
    return str(digest)[:19]
