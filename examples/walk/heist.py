"""Six attempts to change the past, each on a copy of its own, each caught with its reason."""

from __future__ import annotations

from pathlib import Path

from walk import thief
from walk.auditor import verify_alone
from walk.state import FIRST_DAY, THRESHOLD, Walk, case_of

REASONS = ("error:", "FINDING", "FAILS")
REASONS_MAX = 3  # shown; the first is the nearest to what was done


def steal(walk: Walk) -> None:
    stage = walk.stage
    stage.station(
        "The thief",
        "Somebody with write access tries to change the past, each time on a copy of its own, with every\n"
        "key but the log's.",
    )
    walk.server.stop()
    attempts = (flip_engine, change_value, remove_entry, swap_in_bundle, swap_in_log, restore_older)
    caught = []
    for attempt in attempts:
        what, said = attempt(walk)
        reasons = [line.strip() for line in said.splitlines() if line.strip().startswith(REASONS)]
        stage.need(reasons, f"{what}: expected a reason, got {said[-500:]}")
        stage.good(f"caught: {what}")
        stage.lines("\n".join(reasons[:REASONS_MAX]))
        stage.console.print()
        caught.append((what, reasons[0]))
    walk.facts["caught"] = caught
    stage.prove(
        f"{len(caught)} attempts to change the past, each caught", "exit 3, with the place", "tampered/"
    )


def spoiled(walk: Walk, name: str) -> Path:
    """A copy of the site without the log's key."""
    copy = thief.copy_site(walk.site, walk.site / "tampered" / name)
    (copy / "keys" / "log.key").unlink()
    return copy


def fsck(walk: Walk, copy: Path, *reason: str) -> str:
    """Read a copy of the log again, against the key from the site's own trust folder."""
    return walk.stage.refuse("ledger", "fsck", "--folder", str(copy / "ledger"), code=3, reason=reason)


def flip_engine(walk: Walk) -> tuple[str, str]:
    folder, engine = thief.flip_engine_byte(walk.archives["credit"], walk.site / "tampered" / "engine")
    return "one byte of the engine", walk.stage.refuse("verify", str(folder), code=3, reason=[engine])


def change_value(walk: Walk) -> tuple[str, str]:
    copy = spoiled(walk, "value")
    call = case_of(walk).call
    slot = walk.entries[call]["slot"]
    before, after = f'"slot":{slot},'.encode(), f'"slot":{slot + 1},'.encode()
    thief.change_value(copy / "ledger", call, lambda raw: raw.replace(before, after))
    return "one value in the ledger", fsck(walk, copy, "entry", "hash")


def remove_entry(walk: Walk) -> tuple[str, str]:
    copy = spoiled(walk, "removed")
    thief.rewrite(copy / "ledger", thief.without(case_of(walk).call))
    return "one entry removed, and the tree computed again", fsck(walk, copy, "root")


def swap_in_bundle(walk: Walk) -> tuple[str, str]:
    forged = walk.auditor / "forged.zip"
    raw = thief.forge_bundle((walk.site / "bundle.zip").read_bytes(), walk.site / "keys" / "exporter.key")
    forged.write_bytes(raw)
    why = walk.stage.check_refusal(
        verify_alone(walk, forged), "verify.py", 3, ["openings", "does not open the commitment"]
    )
    return "'refused' made 'granted' in the bundle, signed again with the exporter's key", why


def swap_in_log(walk: Walk) -> tuple[str, str]:
    copy = spoiled(walk, "swapped")
    second = walk.replies[FIRST_DAY:]
    granted = next(r.call for r in second if r.ask.model == "credit" and r.scores[1] < THRESHOLD)
    thief.rewrite(copy / "ledger", thief.swap_outputs(case_of(walk).call, granted))
    thief.sign_with_own_key(copy)
    what = "two outputs swapped in the log, the tree computed and signed again by another key"
    return what, fsck(walk, copy, "signature")


def restore_older(walk: Walk) -> tuple[str, str]:
    bundle = walk.auditor / "older.zip"
    walk.stage.say("  the folder of the first evening is back, with all its keys:", "dim")
    older = walk.site / "tampered" / "older"
    walk.stage.ask("export", walk.replies[0].call, "--out", str(bundle), site=older)
    blind = verify_alone(walk, bundle, str(walk.site / "trust"))
    walk.stage.need(blind.returncode == 0, f"verify.py: expected exit 0 without memory, got {blind.stdout}")
    walk.stage.say("  it holds for somebody who never saw this log before; but not for the auditor:", "dim")
    why = walk.stage.check_refusal(
        verify_alone(walk, bundle), "verify.py", 3, ["older than the checkpoint you saw"]
    )
    return "an older folder restored, against the auditor's seen.checkpoint", why
