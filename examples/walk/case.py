"""One refused applicant: found, told, answered, proven, replayed; and one person erased."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import preprocess

from pellucid.core.archive import read_archive
from walk import crowd, log
from walk.stage import BrokenError
from walk.state import FIRST_DAY, THRESHOLD, Walk, case_of, original


def complaint(walk: Walk) -> None:
    stage = walk.stage
    case = walk.case = choose(walk)
    number = int(case.ask.subject.rpartition("-")[2])
    applicant = walk.applicants[number]
    stage.station(
        "A refused loan",
        "Weeks later: 'I never defaulted. Why was I refused?' The letter carries the bank's trace id.",
    )
    amount, months = int(applicant["credit_amount"]), applicant["duration_in_month"]
    stage.say(f"    {amount:,} DM over {months} months, for {applicant['purpose']}.")
    stage.say(f"    Savings: {applicant['savings_account_and_bonds']}.")
    stage.say(f"    Account: {applicant['status_of_existing_checking_account']}.")
    stage.say("")
    found = stage.ask("ledger", "show", "--trace", case.ask.trace)
    rows = found["entries"]
    stage.need(
        [row["key"] for row in rows] == [case.call], f"search by trace: expected {case.call}, got {rows}"
    )
    stage.good(f"found by trace id: call {case.call}")
    score = case.scores[1]
    stage.say("")
    stage.say(f"    The model put the risk at {score:.1%}; the bank refuses from {THRESHOLD:.0%} on.")
    data = walk.entries[case.call]
    stage.say(f"    It was decided in bucket {data['bucket']}, slot {data['slot']}, at {data['accepted']}.")


def choose(walk: Walk) -> crowd.Reply:
    """A refused applicant of the second day who shared a batch and was not alone in front of it."""
    for reply in walk.replies[FIRST_DAY:]:
        data = walk.entries[reply.call]
        refused = reply.ask.model == "credit" and reply.scores[1] >= THRESHOLD + 0.1
        if refused and data["batch"] is not None and data["slot"] > 0:
            return reply
    raise BrokenError("calls: expected a refused applicant who shared a batch, got none")


def regulator(walk: Walk) -> None:
    stage = walk.stage
    stage.station("The regulator asks four things")
    stage.tell("answer", case_of(walk).call)
    answers = stage.ask("answer", case_of(walk).call, quiet=True)
    walk.facts["answers"] = answers
    stage.prove("image, precision, calibration, signature", "pellucid answer CALL", "report.html")


def entry_and_proof(walk: Walk) -> None:
    stage = walk.stage
    case = case_of(walk)
    stage.station(
        "Entry and proof", "The leaf itself: who asked and what for stands in it as commitments only."
    )
    stage.tell("ledger", "get", case.call)
    proof = stage.ask("ledger", "prove", case.call)
    hashes = proof["proof"].partition("\n\n")[0].count("\n") - 1
    stage.good(
        f"{hashes} hashes lead from entry {proof['index']} to the signed root of {proof['size']} entries"
    )
    stage.tell("ledger", "complete")
    raw = log.read_log(walk.ledger)[log.position(log.read_log(walk.ledger), case.call)]
    for secret in (case.ask.subject, case.ask.trace, "refused"):
        stage.need(secret.encode() not in raw, f"entry: expected no {secret!r} in the clear, got it")
    stage.good("neither applicant, trace id nor decision stands in it in the clear")
    stage.prove("the decision is in the log, unchanged", "pellucid ledger prove CALL", "ledger/")


def replay(walk: Walk) -> None:
    stage = walk.stage
    case = case_of(walk)
    stage.station(
        "The same again",
        "From the applicant's original data, through the preprocessing whose digest is signed, in a process\n"
        "of its own, in the recorded bucket and slot.",
    )
    package = read_archive(walk.archives["credit"].read_bytes())
    signed = json.loads(package.files["meaning.json"])["preprocessing"]["digest"]
    code = hashlib.sha256(Path(preprocess.__file__).read_bytes()).hexdigest()
    stage.need(signed == f"sha256:{code}", f"preprocessing: expected {signed}, got sha256:{code}")
    stage.good(f"preprocess.py is the one whose digest the package signs, {signed[:19]}")
    inputs = original(walk, case)
    verdict = stage.ask("replay", case.call, "--input", str(inputs))
    inputs.unlink()
    stage.need(verdict["verdict"] == "bit-exact", f"replay: expected bit-exact, got {verdict}")
    stage.good(f"bit for bit: {verdict['verdict']}; the report is signed")
    walk.facts["replay"] = verdict
    stage.prove("the same bits today", "pellucid replay CALL --input FILE", "report.html")


def erase(walk: Walk) -> None:
    stage = walk.stage
    stage.station(
        "One person asks to be forgotten",
        "Keys and values are shredded, the erasure is an entry; the tree stays as it is.",
    )
    other = next(r for r in walk.replies[FIRST_DAY:] if r.ask.subject and r.call != case_of(walk).call)
    stage.tell("ledger", "erase", "--subject", other.ask.subject, "--rule", "GDPR 17(1)(b)",
               "--reason", "consent withdrawn")  # fmt: skip
    stage.ask("ledger", "prove", other.call)
    stage.good("the proof of the call still holds")
    inputs = original(walk, other)
    said = stage.refuse(
        "replay", other.call, "--input", str(inputs), code=6, reason=["erased", "GDPR 17(1)(b)"]
    )
    inputs.unlink()
    stage.lines(said)
    stage.tell("ledger", "fsck")
    stage.prove("one person erased, every proof intact", "pellucid ledger erase", "ledger/")
