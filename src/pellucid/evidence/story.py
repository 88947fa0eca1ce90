"""Who did what, and when: one call told in plain words, each sentence from an entry or a signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pellucid.core.entry import Opening
from pellucid.evidence.chain import Chain, Leaf

OUTCOMES = {
    "answered": "The model answered.",
    "failed": "The model failed, and the failure was recorded.",
    "refused": "The call was refused at the door, and the refusal was recorded.",
    "unresolved": "The server ended before the call did; what became of it is not known.",
}
WHEN = {"build": "built", "package": "signed", "qualification": "qualified", "approval": "approved"}


def tell_story(chain: Chain) -> list[dict[str, Any]]:
    """What happened, oldest first: ``{"time", "text", "index"}``; the index is that of the entry."""
    told = [_sentence(leaf, _about_package(leaf)) for leaf in chain.package]
    if chain.load is not None:
        told.append(_sentence(chain.load, _about_load(chain.load.entry.data)))
    told.append(_sentence(chain.call, _about_call(chain)))
    told += [_sentence(leaf, f"Replayed: {leaf.entry.data.get('verdict')}.") for leaf in chain.replays]
    told += [_sentence(leaf, _about_erasure(leaf.entry.data)) for leaf in chain.erasures]
    return sorted(told, key=lambda sentence: sentence["index"])


def short_time(text: str) -> str:
    """``2026-11-30 16:40:14 UTC`` of an entry's time."""
    return f"{text[:10]} {text[11:19]} UTC"


def _sentence(leaf: Leaf, text: str) -> dict[str, Any]:
    return {"index": leaf.index, "time": short_time(leaf.entry.time), "text": text}


def _about_package(leaf: Leaf) -> str:
    data = leaf.entry.data
    what = f"{data.get('name', 'The package')} {data.get('version', '')}".strip()
    if leaf.entry.type == "qualification":
        passed = "passed" if data.get("passed") is True else "did not pass"
        return f"{what} was measured on its device and {passed}; its bits are {data.get('label')}."
    if leaf.entry.type == "approval":
        return f"{what} was approved by a signature in the role {data.get('role')}."
    return f"{what} was {WHEN[leaf.entry.type]}."


def _about_load(data: Mapping[str, Any]) -> str:
    findings, what = data.get("findings"), f"{data['model']} {data['version']}"
    if not isinstance(findings, list) or not findings:
        return f"The guardian judged {what}: {data.get('verdict')}."
    held = sum(1 for finding in findings if finding.get("passed") is True)
    return f"The guardian judged {what} by {len(findings)} rules, {held} held: {data.get('verdict')}."


def _about_call(chain: Chain) -> str:
    data = chain.call.entry.data
    if data["outcome"] != "answered":
        return f"{OUTCOMES[data['outcome']]} Reason: {data.get('error') or 'none given'}."
    parts = [f"{data['model']} {data['version']} {_decision(chain.openings)}"]
    parts.append(f"It took {data['stages']['total_ns'] / 1e6:.1f} ms on {_device(data)}")
    parts.append(_company(chain))
    return ". ".join(parts) + "."


def _decision(openings: tuple[Opening, ...]) -> str:
    rows = sorted((o for o in openings if o.kind == "output"), key=lambda o: o.row)
    if not rows:
        return "answered; the answer can no longer be opened"
    said = [f"{o.label} (confidence {o.confidence})" for o in rows if o.label is not None]
    if not said:
        return f"answered {len(rows)} rows of numbers"
    more = f" and {len(said) - 3} more rows" if len(said) > 3 else ""
    return f"answered {', '.join(said[:3])}{more}"


def _device(data: Mapping[str, Any]) -> str:
    device = data.get("device")
    name = device.get("name") if isinstance(device, Mapping) else device
    threads = data.get("threads")
    count = "" if not threads else f", {threads} thread" + ("s" if threads != 1 else "")
    return f"{name or 'a device that was not recorded'}{count}"


def _company(chain: Chain) -> str:
    data = chain.call.entry.data
    if chain.batch is None:
        return f"It ran alone in a bucket of {data['bucket']}"
    others = chain.batch.entry.data["calls"] - 1
    with_whom = f"{others} other call" + ("s" if others != 1 else "")
    return f"It shared a bucket of {data['bucket']} with {with_whom}, in slot {data['slot']}"


def _about_erasure(data: Mapping[str, Any]) -> str:
    rule = data.get("rule") or "a rule that the entry does not name"
    return f"Values of this call were erased under {rule}; the proofs still hold."
