"""Six attempts to change the past, each on a copy of its own, each caught with its reason."""

from __future__ import annotations

from pathlib import Path

from walk import thief
from walk.auditor import verify_alone
from walk.state import FIRST_DAY, THRESHOLD, Walk, case_of


def steal(walk: Walk) -> None:
    stage = walk.stage
    stage.station(
        "The thief",
        "Somebody with write access tries to change the past, each time on a copy of its own, with every\n"
        "key but the log's.",
    )
    walk.server.stop()
    attempts = (flip_engine, change_value, remove_entry, swap_in_bundle, swap_in_log, restore_older)
    rows = []
    for attempt in attempts:
        what, why = attempt(walk)
        caught = stage.short(next(line for line in why.splitlines() if line.strip()).strip())
        stage.console.print()
        rows.append((what, caught))
        stage.prove(f"caught: {what}", "exit 3", "tampered/")
    walk.facts["caught"] = rows


def spoiled(walk: Walk, name: str) -> Path:
    copy = thief.copy_site(walk.site, walk.site / "tampered" / name)
    (copy / "keys" / "log.key").unlink()
    return copy


def told(walk: Walk, what: str, why: str) -> tuple[str, str]:
    walk.stage.good(f"caught: {what}")
    walk.stage.lines(why)
    return what, why


def flip_engine(walk: Walk) -> tuple[str, str]:
    folder, engine = thief.flip_engine_byte(walk.archives["credit"], walk.site / "tampered" / "engine")
    why = walk.stage.refuse("verify", str(folder), code=3, reason=[engine])
    return told(walk, "one byte of the engine", why)


def change_value(walk: Walk) -> tuple[str, str]:
    copy = spoiled(walk, "value")
    call = case_of(walk).call
    slot = walk.entries[call]["slot"]
    before, after = f'"slot":{slot},'.encode(), f'"slot":{(slot + 1) % 10},'.encode()
    thief.change_value(copy / "ledger", call, lambda raw: raw.replace(before, after))
    why = walk.stage.refuse("ledger", "fsck", site=copy, code=3, reason=["entr"])
    return told(walk, "one value in the ledger", why)


def remove_entry(walk: Walk) -> tuple[str, str]:
    copy = spoiled(walk, "removed")
    thief.rewrite(copy / "ledger", thief.without(case_of(walk).call))
    why = walk.stage.refuse("ledger", "fsck", site=copy, code=3, reason=[])
    return told(walk, "one entry removed, the tree computed again", why)


def swap_in_bundle(walk: Walk) -> tuple[str, str]:
    forged = walk.auditor / "forged.zip"
    raw = thief.forge_bundle((walk.site / "bundle.zip").read_bytes(), walk.site / "keys" / "exporter.key")
    forged.write_bytes(raw)
    done = verify_alone(walk, forged)
    why = walk.stage.check_refusal(done, "verify.py", 3, ["openings", "commitment"])
    return told(walk, "'refused' made 'granted' in the bundle, signed again with the exporter's key", why)


def swap_in_log(walk: Walk) -> tuple[str, str]:
    copy = spoiled(walk, "swapped")
    granted = next(
        r.call for r in walk.replies[FIRST_DAY:] if r.ask.model == "credit" and r.scores[1] < THRESHOLD
    )
    thief.rewrite(copy / "ledger", thief.swap_outputs(case_of(walk).call, granted))
    thief.sign_with_own_key(copy)
    why = walk.stage.refuse("ledger", "fsck", site=copy, code=3, reason=["sign"])
    return told(
        walk, "two outputs swapped in the log, the tree computed and signed again by another key", why
    )


def restore_older(walk: Walk) -> tuple[str, str]:
    older = walk.site / "tampered" / "older"
    bundle = walk.auditor / "older.zip"
    walk.stage.ask("export", walk.replies[0].call, "--out", str(bundle), site=older)
    done = verify_alone(walk, bundle)
    why = walk.stage.check_refusal(done, "verify.py", 3, ["seen"])
    return told(walk, "the older folder restored, against the auditor's seen.checkpoint", why)
