"""The section of RESULTS.md on what the ledger costs."""

from __future__ import annotations

import statistics
from typing import Any, Final

MODES: Final = {"off": "unsafe_record_nothing", "journaled": "journaled", "durable": "durable"}
NAMES: Final = {
    "off": "recording off",
    "journaled": "journaled (default)",
    "durable": "durable",
    "bare_same": "bare ONNX Runtime, level as served",
    "bare_default": "bare ONNX Runtime, its default level",
}


def summary(values: list[float]) -> tuple[float, float, float]:
    """Median, smallest, largest."""
    return statistics.median(values), min(values), max(values)


def render(result: dict[str, Any]) -> str:
    rounds, machine, settings = result["rounds"], result["machine"], result["settings"]
    off = statistics.median(r["per_s"] for r in rounds["off"])
    lines = [
        "## What the ledger costs",
        "" if not settings["quick"] else "\n**`--quick`: one short round. These numbers mean nothing.**\n",
        "| | req/s, median | range | to recording off | p50 us | p99 us | server's CPU us a call |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, label in NAMES.items():
        median, low, high = summary([r["per_s"] for r in rounds[name]])
        p50, p99 = (statistics.median(r[q] for r in rounds[name]) for q in ("p50_us", "p99_us"))
        ratio = f"{median / off:.2f}" if name in MODES else ""
        cpu = f"{statistics.median(r['cpu_us'] for r in rounds[name]):.1f}" if name in MODES else ""
        lines.append(
            f"| {label} | {median:,.0f} | {low:,.0f} - {high:,.0f} | {ratio} | {p50:,.1f} | {p99:,.1f} "
            f"| {cpu} |"
        )
    lines += ["", f"Within a round, journaled to off: {paired(rounds, 'journaled')}.  "]
    lines += [f"Within a round, durable to off: {paired(rounds, 'durable')}."]
    check = result["verification"]
    lines += [
        "",
        f"- Ledger: {result['sequencer_entries_per_s']:,.0f} entries/s through the sequencer "
        "(journal to signed checkpoint, index and vault, one process).",
        f"- Package verification: {check['verify_mb_s']:,.0f} MB/s in memory, "
        f"{check['open_and_verify_mb_s']:,.0f} MB/s from the archive; hashlib's SHA-256 alone: "
        f"{check['hashlib_mb_s']:,.0f} MB/s.",
        "",
        f"{settings['rounds']} interleaved rounds with slices of {settings['seconds']:g} s, order reversed "
        "every second round, the ledger settled between slices, warm-up left out. "
        f"{settings['connections']} connections, closed loop, JSON in and out, one row of mlp30 (30 inputs, "
        f"{settings['request_bytes']} bytes) a request. "
        f"Client: {result['client']}; client, server and sequencer share the machine's processors. The "
        "server batches what arrives together; bare ONNX Runtime runs one row after the other in a loop.",
        "",
        f"Machine: {machine['processor']}, {machine['logical_processors']} logical processors, "
        f"{machine['memory_gib']} GiB, kernel {machine['kernel']}, {machine['file_system']}, one fdatasync "
        f"{machine['fdatasync_ms']} ms, load average before {machine['load_average']}. "
        f"Python {machine['python']}, "
        + ", ".join(f"{name} {version}" for name, version in machine["libraries"].items())
        + f". Commit {machine['commit']}. Took {result.get('took_s', 0):.0f} s.",
        "",
    ]
    return "\n".join(lines)


def paired(rounds: dict[str, list[dict[str, float]]], name: str) -> str:
    ratios = sorted(a["per_s"] / b["per_s"] for a, b in zip(rounds[name], rounds["off"], strict=True))
    middle = ratios[len(ratios) // 4 : len(ratios) - len(ratios) // 4]
    return f"median **{statistics.median(ratios):.2f}**, middle half {middle[0]:.2f} - {middle[-1]:.2f}"
