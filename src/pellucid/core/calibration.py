"""Which rows of a calibration set are used, and what the package keeps of them: digests, never rows.

``calibration/manifest.json`` names every chosen sample by digest, the rule and the seed that chose
it, and where the set came from. Source: spec/calibration.md, sections 1 to 3; requirement B6.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pellucid.core import canonical
from pellucid.core.digest import format_digest, parse_digest
from pellucid.core.times import parse_time
from pellucid.errors import FormatError, RecipeError

MANIFEST_PATH: Final = "calibration/manifest.json"
RANGES_PATH: Final = "calibration/ranges.json"
FORMAT: Final = "pellucid-calibration/1"
DOCUMENT_BYTES_MAX: Final = 256 * 2**20  # limit: a million samples, or the channels of a large model
RULES: Final = ("all", "first", "random", "stratified")
_SAMPLES_DOMAIN: Final = b"pellucid/samples/v1\n"
_SELECT_DOMAIN: Final = b"pellucid/select/v1\n"
_KEYS: Final = frozenset(
    ["format", "data", "rows", "inputs", "select", "samples", "samples_digest", "slices", "times", "source",
     "licence"]
)  # fmt: skip


# -- selection ------------------------------------------------------------------------------------


def select(rule: Mapping[str, Any], count: int, values: Sequence[str] = ()) -> list[int]:
    """Rows that a rule chooses, ascending; the same rows for the same arguments, for ever.

    Args:
        rule: ``{rule, count, seed, slice}`` of the recipe.
        count: Rows of the set.
        values: Value of every row in the rule's slice; only ``stratified`` looks at it.

    Raises:
        RecipeError: The set has fewer rows than the rule asks for.
    """
    name, wanted = rule["rule"], rule["count"]
    if name == "all":
        return list(range(count))
    if wanted > count:
        raise _too_few(f"{wanted:,} rows", f"{count:,}")
    if name == "first":
        return list(range(wanted))
    if name == "random":
        return sorted(_drawn(range(count), wanted, rule["seed"]))
    return _stratified(wanted, rule["seed"], values)


def _stratified(wanted: int, seed: int, values: Sequence[str]) -> list[int]:
    """Equal shares of every value; where they do not come out even, the first values get one more."""
    groups: dict[str, list[int]] = {}
    for row, value in enumerate(values):
        groups.setdefault(value, []).append(row)
    share, more = divmod(wanted, len(groups))
    chosen: list[int] = []
    for position, value in enumerate(sorted(groups)):
        size = share + (position < more)
        if size > len(groups[value]):
            raise _too_few(f"{size:,} rows of {value!r:.60}", f"{len(groups[value]):,}")
        chosen += _drawn(groups[value], size, seed)
    return sorted(chosen)


def _drawn(rows: Sequence[int], count: int, seed: int) -> list[int]:
    """The rows whose hashes with the seed are smallest: no generator whose stream could change."""
    head = _SELECT_DOMAIN + seed.to_bytes(8, "big")
    return sorted(rows, key=lambda row: hashlib.sha256(head + row.to_bytes(8, "big")).digest())[:count]


def _too_few(expected: str, got: str) -> RecipeError:
    return RecipeError(
        f"recipe: calibration.select: expected at least {expected} in the set, got {got}",
        hint="lower calibration.select.count, or bring more data",
    )


def samples_digest(digests: Sequence[str]) -> str:
    """One digest of an ordered list of sample digests."""
    raw = b"".join(map(parse_digest, digests))
    return format_digest(hashlib.sha256(_SAMPLES_DOMAIN + raw).digest())


# -- manifest.json --------------------------------------------------------------------------------


class Sample(msgspec.Struct, frozen=True):
    """One chosen row: its 0-based index in the data file, and its row digest."""

    index: int
    digest: str


class CalibrationSet(msgspec.Struct, frozen=True):
    """What the package says of its calibration set.

    Attributes:
        data: Digest of the data file; rows: how many it has.
        inputs: ``{name, datatype, shape}`` of one row, in the model's order.
        select: ``{rule, count, seed, slice}``.
        samples: The chosen rows, ascending.
        slices: ``{name, values: [{value, rows, selected}]}``.
        times: ``{from, to}`` of the chosen rows, or ``None`` where the set has no times.
        source, licence: As the recipe says, or ``None``.
    """

    data: str
    rows: int
    inputs: tuple[dict[str, Any], ...]
    select: dict[str, Any]
    samples: tuple[Sample, ...]
    slices: tuple[dict[str, Any], ...]
    times: dict[str, str] | None
    source: str | None
    licence: str | None

    @property
    def digest(self) -> str:
        """One digest of all chosen samples in order."""
        return samples_digest([sample.digest for sample in self.samples])

    @property
    def selection(self) -> str:
        """In words: ``stratified by ink, 200 of 1,297 rows, seed 4``."""
        rule, count = self.select["rule"], f"{len(self.samples):,} of {self.rows:,} rows"
        by = f" by {self.select['slice']}" if rule == "stratified" else ""
        seed = f", seed {self.select['seed']}" if rule in ("random", "stratified") else ""
        return f"{rule}{by}, {count}{seed}"

    def holds(self, digest: str) -> bool:
        """True when a sample of that digest was chosen."""
        return any(sample.digest == digest for sample in self.samples)


def make_manifest(found: CalibrationSet) -> dict[str, Any]:
    """The document of a calibration set."""
    return {
        "format": FORMAT, "data": found.data, "rows": found.rows, "inputs": list(found.inputs),
        "select": found.select,
        "samples": [{"index": s.index, "digest": s.digest} for s in found.samples],
        "samples_digest": found.digest, "slices": list(found.slices), "times": found.times,
        "source": found.source, "licence": found.licence,
    }  # fmt: skip


def parse_manifest(raw: bytes) -> CalibrationSet:
    """Read ``calibration/manifest.json``.

    Raises:
        FormatError: Not canonical JSON, a missing or unknown key, a value of another form, or a
            digest of all samples that is not theirs.
    """
    value = canonical.decode(raw, size_max=DOCUMENT_BYTES_MAX)
    closed(MANIFEST_PATH, value, _KEYS)
    if value["format"] != FORMAT:
        raise FormatError(f"{MANIFEST_PATH}: expected format {FORMAT!r}, got {value['format']!r:.60}")
    samples = _parse_samples(value["samples"], value["rows"])
    parse_digest(value["data"])
    found = CalibrationSet(
        value["data"], value["rows"], _objects("inputs", value["inputs"], {"name", "datatype", "shape"}),
        _parse_select(value["select"]), samples, _parse_slices(value["slices"]), _parse_range(value["times"]),
        _optional_text("source", value["source"]), _optional_text("licence", value["licence"]),
    )  # fmt: skip
    if value["samples_digest"] != found.digest:
        raise FormatError(
            f"{MANIFEST_PATH}: samples_digest: expected {found.digest[:19]}..., "
            f"got {value['samples_digest']!r:.30}"
        )
    return found


def closed(subject: str, value: Any, keys: frozenset[str] | set[str]) -> None:
    """Refuse anything but an object of exactly these keys.

    Raises:
        FormatError: Names what is missing or unknown.
    """
    if type(value) is not dict:
        raise FormatError(f"{subject}: expected an object, got {type(value).__name__}")
    if value.keys() != keys:
        missing, unknown = sorted(keys - value.keys()), sorted(value.keys() - keys)
        raise FormatError(
            f"{subject}: expected exactly its keys, got missing {missing!r:.120}, unknown {unknown!r:.120}"
        )


def _parse_samples(value: Any, rows: Any) -> tuple[Sample, ...]:
    if type(rows) is not int or rows < 1:
        raise FormatError(f"{MANIFEST_PATH}: rows: expected 1 or more, got {rows!r:.40}")
    if type(value) is not list or not value:
        raise FormatError(f"{MANIFEST_PATH}: samples: expected a list of samples, got {value!r:.40}")
    samples, last = [], -1
    for item in value:
        closed(f"{MANIFEST_PATH}: samples", item, {"index", "digest"})
        index = item["index"]
        if type(index) is not int or not last < index < rows:
            raise FormatError(
                f"{MANIFEST_PATH}: samples: expected ascending rows below {rows:,}, got {index!r:.40}"
            )
        parse_digest(item["digest"])
        samples.append(Sample(index, item["digest"]))
        last = index
    return tuple(samples)


def _parse_select(value: Any) -> dict[str, Any]:
    closed(f"{MANIFEST_PATH}: select", value, {"rule", "count", "seed", "slice"})
    is_good = (
        value["rule"] in RULES
        and (value["count"] is None or _is_count(value["count"]))
        and _is_count(value["seed"])
        and (value["slice"] is None or type(value["slice"]) is str)
    )
    if not is_good:
        raise FormatError(
            f"{MANIFEST_PATH}: select: expected rule, count, seed and slice, got {value!r:.120}"
        )
    selected: dict[str, Any] = value
    return selected


def _parse_slices(value: Any) -> tuple[dict[str, Any], ...]:
    slices = _objects("slices", value, {"name", "values"})
    for item in slices:
        values = _objects("slices", item["values"], {"value", "rows", "selected"})
        if not all(_is_count(v["rows"]) and _is_count(v["selected"]) for v in values):
            raise FormatError(f"{MANIFEST_PATH}: slices: expected counts, got others in {item['name']!r:.60}")
    return slices


def _parse_range(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    closed(f"{MANIFEST_PATH}: times", value, {"from", "to"})
    if parse_time(value["from"]) > parse_time(value["to"]):
        raise FormatError(
            f"{MANIFEST_PATH}: times: expected from before to, got {value['from']:.40} after it"
        )
    found: dict[str, str] = value
    return found


def _objects(name: str, value: Any, keys: set[str]) -> tuple[dict[str, Any], ...]:
    if type(value) is not list:
        raise FormatError(f"{MANIFEST_PATH}: {name}: expected a list, got {type(value).__name__}")
    for item in value:
        closed(f"{MANIFEST_PATH}: {name}", item, keys)
        first = item.get("name", item.get("value"))
        if type(first) is not str:
            raise FormatError(f"{MANIFEST_PATH}: {name}: expected text, got {first!r:.40}")
    return tuple(value)


def _optional_text(name: str, value: Any) -> str | None:
    if value is not None and type(value) is not str:
        raise FormatError(f"{MANIFEST_PATH}: {name}: expected text or null, got {type(value).__name__}")
    text: str | None = value
    return text


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
