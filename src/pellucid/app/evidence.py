"""Replay, answers and evidence bundles of a site, plugged together. Every one of them is an entry."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pellucid.app.clock import SystemClock
from pellucid.app.ledger import (
    MOMENT_S,
    integrate,
    is_sequencing,
    ledger_vkey,
    open_ledger,
    record_event,
    wait_integrated,
)
from pellucid.app.load import opener
from pellucid.app.site import POLICIES, read_trust
from pellucid.core.digest import parse_digest, sha256
from pellucid.core.times import format_time
from pellucid.core.trust import TrustedPackage, verify_package
from pellucid.errors import NotFoundError, PellucidError, UsageError
from pellucid.evidence.answer import answer_four
from pellucid.evidence.chain import Chain, gather, verify_answers
from pellucid.evidence.check import Checked, check_bundle
from pellucid.evidence.export import Material, digest_of, export_case, export_period, view_log
from pellucid.evidence.period import find_period, widen
from pellucid.evidence.report_html import render_case_report
from pellucid.evidence.story import tell_story
from pellucid.replay.original import input_specs, parse_original, pick_rows
from pellucid.replay.replay import Past, ReplayResult, replay_call
from pellucid.replay.report import make_predicate, render_report, sign_report

if TYPE_CHECKING:
    from pellucid.app.ledger import Ledger
    from pellucid.app.site import Site

REPORTS: Final = "reports"  # folder of signed replay reports, by their digest


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay, its signed report, and where it lies.

    Attributes:
        result: What came of it.
        predicate: The report, as JSON.
        path: The signed report; ``page`` is the same for people.
        entry: Key of the ``replay`` entry.
    """

    result: ReplayResult
    predicate: dict[str, Any]
    path: Path
    page: Path
    entry: str


@dataclass(frozen=True, slots=True)
class Exported:
    """A bundle that was written; ``entry`` is the key of its ``export`` entry."""

    path: Path
    digest: str
    entries: int
    entry: str


def now() -> str:
    """This moment, as entries write it."""
    return format_time(SystemClock().now_ns())


# -- replay ---------------------------------------------------------------------------------------


def replay(
    site: Site, call: str, original: bytes, *, row: int | None = None, tolerance: float = 0.0
) -> Replayed:
    """Run a past call again from its original input; the report is signed, kept and recorded.

    An attempt that ends before anything ran (wrong input, erased, lost) is recorded as a read.

    Raises:
        NotFoundError: No such call, or its package is not in the site.
        ErasedError, ReplayMismatchError: As in ``replay.replay_call``.
    """
    from pellucid.app.build import isolated

    with _opened(site, call) as ledger:
        chain = _chain(ledger, call)
    try:
        package = package_of(site, chain)
        rows = pick_rows(parse_original(original, input_specs(package)), chain.call.entry.data, row)
        result = replay_call(_past(chain), rows, package, isolated(site), tolerance=tolerance)
    except PellucidError as error:
        record_event(site, "read", {"what": "replay", "call": call, "outcome": error.code})
        raise
    return _keep_report(site, result)


def _past(chain: Chain) -> Past:
    recorded = chain.load.entry.data.get("environment_facts") if chain.load is not None else None
    erasures = tuple(leaf.entry for leaf in chain.erasures)
    return Past(chain.call.entry, chain.openings, erasures, recorded)


def _keep_report(site: Site, result: ReplayResult) -> Replayed:
    predicate = make_predicate(result, time=now())
    report = sign_report(predicate, site.signer("replayer"))
    digest = sha256(report)
    folder = site.path(REPORTS)
    folder.mkdir(exist_ok=True)
    path = folder / f"{parse_digest(digest).hex()}.sigstore.json"
    page = path.with_name(f"{parse_digest(digest).hex()}.html")
    # the report first: an entry must never name a report that a crash kept from the disk
    path.write_bytes(report)
    page.write_bytes(render_report(predicate))
    data = {"call": result.call, "verdict": result.verdict, "report": digest, "package": result.package}
    return Replayed(result, predicate, path, page, record_event(site, "replay", data))


# -- answers --------------------------------------------------------------------------------------


def answer(site: Site, call: str) -> dict[str, Any]:
    """The regulator's four and the story of a call; the reading is recorded.

    Raises:
        NotFoundError: No such call, or its package is not in the site.
        VerificationError: The package is not what it was signed as, or the vault says another answer
            than was recorded.
    """
    with _opened(site, call) as ledger:
        chain = verify_answers(_chain(ledger, call))
    record_event(site, "read", {"what": "answer", "call": call})
    four = answer_four(chain, package_of(site, chain)) if chain.call.entry.data.get("package") else None
    data = chain.call.entry.data
    return {
        "call": call,
        "index": chain.call.index,
        "outcome": data["outcome"],
        "model": data.get("model"),
        "version": data.get("version"),
        "four": four,
        "story": tell_story(chain),
    }


def package_of(site: Site, chain: Chain) -> TrustedPackage:
    """The package that answered, found by its digest and verified.

    Raises:
        UsageError: The call never reached a package.
        NotFoundError: The site does not have it.
    """
    digest = chain.call.entry.data.get("package")
    if digest is None:
        raise UsageError(f"call {chain.call.entry.id}: expected a call that reached a package, got none")
    return verify_package(opener(site).open(digest), site.trust())


# -- export ---------------------------------------------------------------------------------------


def export(
    site: Site,
    call: str,
    out: Path,
    *,
    reason: str = "",
    seen: bytes | None = None,
    original: bytes | None = None,
) -> Exported:
    """Write the evidence bundle of one call.

    Args:
        call: Call key.
        out: File to write; nothing existing is replaced.
        reason: Why it is exported; goes into the entry.
        seen: Checkpoint that the recipient saw before.
        original: Original input of the call, to be shown to match.

    Raises:
        NotFoundError: No such call.
        RollbackError: The recipient saw a longer log than this one.
        VerificationError: The site's evidence does not hold; nothing is written.
    """
    with _opened(site, call) as ledger:
        chain = _chain(ledger, call)
        view = view_log(ledger.reader, ledger_vkey(site), seen)
        material = _material(site, chain, original)
        bundle = export_case(
            ledger.reader, view, chain, material, created=now(), signer=site.signer("exporter")
        )
    data = {"call": call, "entries": len(chain.leaves), "reason": reason}
    return _write(site, bundle, out, data, seen=seen)


def export_time(
    site: Site,
    since_ns: int,
    until_ns: int,
    out: Path,
    *,
    reason: str = "",
    seen: bytes | None = None,
    is_narrow: bool = False,
) -> Exported:
    """Write the evidence bundle of a period: every entry from the first to the last within it.

    Args:
        since_ns: First moment, nanoseconds since 1970.
        until_ns: Last moment.
        is_narrow: Leave out what lies outside the period. Else the bundle is widened to the whole
            part of every worker that answered in it, so that its calls can be counted.

    Raises:
        NotFoundError: No entry lies in the period.
    """
    with _opened(site) as ledger:
        start, stop = find_period(ledger.reader, since_ns, until_ns)
        if not is_narrow:
            start, stop = widen(ledger.reader, start, stop)
        view = view_log(ledger.reader, ledger_vkey(site), seen)
        bundle = export_period(
            ledger.reader, view, start, stop, created=now(), signer=site.signer("exporter")
        )
    data = {"entries": stop - start, "first": start, "reason": reason}
    return _write(site, bundle, out, data, seen=seen)


def _material(site: Site, chain: Chain, original: bytes | None) -> Material:
    if chain.call.entry.data.get("package") is None:
        return Material()
    package = package_of(site, chain)
    inputs = {}
    if original is not None:
        tensors = parse_original(original, input_specs(package))
        inputs = dict(pick_rows(tensors, chain.call.entry.data, None))
    return Material(
        package=package.files,
        policies=_policies(site, chain),
        reports=dict(_reports(site, chain)),
        inputs=inputs,
        answers=answer_four(chain, package),
    )


def _policies(site: Site, chain: Chain) -> dict[str, bytes]:
    """The policy the call ran under, while the site still has its text."""
    digest = chain.call.entry.data.get("policy")
    if digest is None:
        return {}
    candidates = [site.path(site.config.policy), site.path(POLICIES) / parse_digest(digest).hex()]
    texts = [path.read_bytes() for path in candidates if path.is_file()]
    found = next((text for text in texts if sha256(text) == digest), None)
    return {} if found is None else {digest: found}


def _reports(site: Site, chain: Chain) -> Iterator[tuple[str, bytes]]:
    for leaf in chain.replays:
        digest = leaf.entry.data["report"]
        path = site.path(REPORTS) / f"{parse_digest(digest).hex()}.sigstore.json"
        if path.is_file() and sha256(raw := path.read_bytes()) == digest:
            yield digest, raw


def _write(site: Site, bundle: bytes, out: Path, data: dict[str, Any], *, seen: bytes | None) -> Exported:
    if out.exists():
        raise UsageError(f"{out}: expected no such file yet, got one", hint="choose another name")
    if not out.parent.is_dir():
        raise NotFoundError(
            f"{out}: expected a folder to write it into, got none", hint=f"mkdir {out.parent}"
        )
    check(site, bundle, seen=seen)  # evidence that does not hold for ourselves is not handed out
    digest = digest_of(bundle)
    # the entry before the file: nothing leaves the house that the ledger does not know of
    key = record_event(site, "export", {"bundle": digest, **data})
    out.write_bytes(bundle)
    return Exported(out, digest, data["entries"], key)


def check(site: Site, bundle: bytes, *, seen: bytes | None = None) -> Checked:
    """Check a bundle against the site's own trust; see ``evidence.check``."""
    return check_bundle(bundle, site.trust(), seen=seen)


def check_with(bundle: bytes, trust_folder: Path) -> Checked:
    """Check a bundle as its reader would: with the keys, the policy and the checkpoint of a folder.

    Raises:
        NotFoundError: No such folder.
        As ``evidence.check.check_bundle``.
    """
    trust = read_trust(trust_folder)
    seen, policy = trust_folder / "seen.checkpoint", trust_folder / "policy.txt"
    return check_bundle(
        bundle,
        trust,
        seen=seen.read_bytes() if seen.is_file() else None,
        policy=policy.read_text() if policy.is_file() else None,
    )


def case_report(site: Site, call: str, bundle: bytes) -> bytes:
    """One page about a call, with what the check of its bundle found; for reading and printing.

    Raises:
        VerificationError: The bundle does not hold.
    """
    checked = check(site, bundle)
    with _opened(site, call) as ledger:
        chain = verify_answers(_chain(ledger, call))
    answers = answer_four(chain, package_of(site, chain)) if chain.call.entry.data.get("package") else None
    record_event(site, "read", {"what": "report", "call": call})
    return render_case_report(chain, answers, checked.holds, created=now())


# -- the ledger -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(site: Site, call: str = "") -> Iterator[Ledger]:
    """The ledger with everything in it that was recorded until now.

    A running sequencer may be behind the call that was answered a moment ago: it is waited for.
    """
    integrate(site)
    if call and is_sequencing(site):
        with contextlib.suppress(NotFoundError):  # who looks for it says so in words of their own
            wait_integrated(site, call, timeout_s=MOMENT_S)
    ledger = open_ledger(site)
    try:
        yield ledger
    finally:
        ledger.close()


def _chain(ledger: Ledger, call: str) -> Chain:
    return gather(ledger.reader, call, ledger.vault.erasure_of(call))


def wait_published(site: Site, call: str) -> int:
    """Index of a call once it is in the published log (a running sequencer may need a moment)."""
    return wait_integrated(site, call)
