"""The section of RESULTS.md on pellucid beside other servers, and its plots."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, Final

import plot

Key = tuple[str, str, str, int]  # server, model, form, connections; or server, kind, model and form, 0
Values = dict[int, dict[str, Any]]  # by round
FORM_NAMES: Final = {
    "json": "HTTP, JSON", "binary": "HTTP, binary tensors", "shm": "HTTP, system shared memory",
    "grpc": "gRPC"
}  # fmt: skip
MODEL_NAMES: Final = {
    "mlp30": "mlp30 (30 values)", "cnn32": "cnn32 (3x32x32)", "cnn96": "cnn96 (3x96x96, 111 kB)",
    "img224": "img224 (3x224x224, 600 kB)",
}  # fmt: skip
TRITON: Final = "triton"
OFF: Final = "pellucid-off"
FIGURES: Final = {
    "throughput-mlp30-json.svg": ("mlp30", "json"),
    "throughput-mlp30-binary.svg": ("mlp30", "binary"),
    "throughput-mlp30-grpc.svg": ("mlp30", "grpc"),
    "throughput-cnn32-json.svg": ("cnn32", "json"),
    "throughput-img224-binary.svg": ("img224", "binary"),
}
PERCENTILES: Final = {"p50_us": "p50", "p90_us": "p90", "p99_us": "p99", "p999_us": "p99.9"}


def gather(result: dict[str, Any]) -> tuple[dict[Key, Values], dict[Key, Values]]:
    """Closed and open loads, each by server and what was asked, then by round."""
    closed: dict[Key, Values] = {}
    opened: dict[Key, Values] = {}
    for part in result["rounds"]:
        for load in part["closed"]:
            key = (part["server"], load["model"], load["form"], load["connections"])
            closed.setdefault(key, {})[part["round"]] = load
        for load in part["open"]:
            key = (part["server"], load["kind"], f"{load['model']} {load['form']}", 0)
            opened.setdefault(key, {})[part["round"]] = load
    return closed, opened


def median(values: Values, name: str) -> float:
    return float(statistics.median(load[name] for load in values.values()))


def ratio(values: Values, other: Values | None, name: str = "per_s") -> str:
    """Median of the ratios within a round; with their range, which holds 1 where there is no difference."""
    both = sorted(values.keys() & (other or {}).keys())
    if other is None or not both:
        return "-"
    ratios = sorted(values[n][name] / other[n][name] for n in both)
    middle, *ends = (f"{v:.2f}" if v >= 0.1 else f"{v:.3f}" for v in (statistics.median(ratios), *ratios))
    return middle if len(ratios) == 1 else f"{middle} ({ends[0]}-{ends[-1]})"


def render(result: dict[str, Any]) -> str:
    """The section, without its plots' files."""
    closed, opened = gather(result)
    quick = result["settings"]["quick"]
    lines = [
        "## Beside other servers",
        "\n**`--quick`: one short round. These numbers mean nothing.**\n" if quick else "",
        "Triton here is its **Python backend** (its ONNX Runtime backend is in no wheel): no sentence of "
        "this page holds for another backend of it. A ratio is the median of the ratios within a round, its "
        "range in brackets: where the range holds 1, there is no difference to speak of.",
    ]
    lines += _servers(result, closed)
    lines += _forms(result, closed)
    lines += _alone(result, closed)
    lines += _concurrency(result, closed)
    lines += _open(result, opened)
    lines += _how(result)
    return "\n".join([*lines, ""])


def _servers(result: dict[str, Any], closed: dict[Key, Values]) -> list[str]:
    lines = [
        "",
        "### mlp30, HTTP, JSON, 8 connections, closed loop",
        "",
        "| server | req/s | range | to Triton (Python backend) | to pellucid, recording off | p50 ms "
        "| p99 ms | CPU us a call, all processes | resident MB | first answer s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, title in result["servers"].items():
        values = closed.get((name, "mlp30", "json", 8))
        if not values:
            continue
        rates = [load["per_s"] for load in values.values()]
        own = [part for part in result["rounds"] if part["server"] == name and "memory_after" in part]
        memory = statistics.median(p["memory_after"]["resident_mb"] for p in own) if own else float("nan")
        first = statistics.median(p["first_answer_s"] for p in own) if own else float("nan")
        lines.append(
            f"| {title} | {median(values, 'per_s'):,.0f} | {min(rates):,.0f} - {max(rates):,.0f} "
            f"| {ratio(values, closed.get((TRITON, 'mlp30', 'json', 8)))} "
            f"| {ratio(values, closed.get((OFF, 'mlp30', 'json', 8)))} "
            f"| {median(values, 'p50_us') / 1e3:.2f} | {median(values, 'p99_us') / 1e3:.2f} "
            f"| {median(values, 'cpu_us'):,.0f} | {memory:,.0f} | {first:.1f} |"
        )
    again, first_run = (
        closed.get(("pellucid-again", "mlp30", "json", 8)),
        closed.get(("pellucid", "mlp30", "json", 8)),
    )
    if again and first_run:
        lines += ["", f"The noise: one server under two names, {ratio(again, first_run)}."]
    return lines


def _forms(result: dict[str, Any], closed: dict[Key, Values]) -> list[str]:
    """Every model in every form, at the connections most servers were asked with."""
    lines = ["", "### By model and protocol, closed loop", ""]
    asked = sorted({key[1:] for key in closed}, key=_order)
    shown = [(m, f, 8 if (m, f, 8) in asked else 1) for m, f, _ in asked]
    for model, form, connections in dict.fromkeys(shown):
        lines += [
            f"**{MODEL_NAMES[model]}, {FORM_NAMES[form]}, {connections} "
            f"connection{'s' if connections > 1 else ''}**",
            "",
            "| server | req/s | to Triton (Python backend) | to pellucid, recording off | p50 ms | p99 ms "
            "| CPU us a call |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, title in result["servers"].items():
            values = closed.get((name, model, form, connections))
            if values:
                lines.append(
                    f"| {title} | {median(values, 'per_s'):,.0f} "
                    f"| {ratio(values, closed.get((TRITON, model, form, connections)))} "
                    f"| {ratio(values, closed.get((OFF, model, form, connections)))} "
                    f"| {median(values, 'p50_us') / 1e3:.2f} | {median(values, 'p99_us') / 1e3:.2f} "
                    f"| {median(values, 'cpu_us'):,.0f} |"
                )
        lines.append("")
    return lines


def _alone(result: dict[str, Any], closed: dict[Key, Values]) -> list[str]:
    """pellucid's rows against ONNX Runtime with nothing around it."""
    bare: dict[tuple[str, str], Values] = {}
    for each in result.get("alone", ()):
        bare.setdefault((each["model"], each["level"]), {})[each["round"]] = each
    lines = []
    for model in dict.fromkeys(model for model, _ in bare):
        same, default = bare[model, "same"], bare[model, "default"]
        lines += [
            f"### {MODEL_NAMES[model]}: pellucid against ONNX Runtime alone",
            "",
            "ONNX Runtime in a loop: one row after the other, one thread, no server, no client, arrays at "
            "hand. "
            f"The engine as pellucid serves it: {median(same, 'per_s'):,.0f} rows/s "
            f"({median(same, 'p50_us'):,.0f} us a row); the source at the library's default level: "
            f"{median(default, 'per_s'):,.0f} rows/s.",
            "",
            "| server | asked over | connections | req/s | to ONNX Runtime, same level | its default level |",
            "|---|---|---|---|---|---|",
        ]
        ours = (key for key in closed if key[1] == model and key[0].startswith("pellucid"))
        for key in sorted(ours, key=lambda key: (_order(key[1:]), list(result["servers"]).index(key[0]))):
            if key[3] > 1:
                lines.append(
                    f"| {result['servers'][key[0]]} | {FORM_NAMES[key[2]]} | {key[3]} "
                    f"| {median(closed[key], 'per_s'):,.0f} | {ratio(closed[key], same)} "
                    f"| {ratio(closed[key], default)} |"
                )
        lines.append("")
    return lines


def _order(key: tuple[str, str, int]) -> tuple[int, int, int]:
    model, form, connections = key
    return list(MODEL_NAMES).index(model), list(FORM_NAMES).index(form), connections


def _curves(closed: dict[Key, Values], model: str, form: str) -> dict[str, list[tuple[float, float]]]:
    curves: dict[str, list[tuple[float, float]]] = {}
    for (server, of, by, connections), values in closed.items():
        if (of, by) == (model, form):
            curves.setdefault(server, []).append((connections, median(values, "per_s")))
    return {server: sorted(curve) for server, curve in curves.items() if len(curve) > 1}


def _concurrency(result: dict[str, Any], closed: dict[Key, Values]) -> list[str]:
    lines = ["### Throughput against connections", ""]
    for file, (model, form) in FIGURES.items():
        if _curves(closed, model, form):
            lines.append(f"![{MODEL_NAMES[model]}, {FORM_NAMES[form]}](plots/{file})")
    counts = sorted({key[3] for key in closed if key[1:3] == ("mlp30", "json")})
    heads = " | ".join(f"c={n}" for n in counts)
    lines += ["", f"| mlp30, HTTP, JSON: req/s, median | {heads} |", "|---" * (len(counts) + 1) + "|"]
    for name, title in result["servers"].items():
        cells = [closed.get((name, "mlp30", "json", n)) for n in counts]
        if any(cells):
            told = " | ".join(f"{median(cell, 'per_s'):,.0f}" if cell else "-" for cell in cells)
            lines.append(f"| {title} | {told} |")
    return lines


def _open(result: dict[str, Any], opened: dict[Key, Values]) -> list[str]:
    share = result["settings"]["open_share"]
    lines = [
        "",
        "### Open loop: latency from when a request was due",
        "",
        "Poisson arrivals, the same for all; a stall is paid by everybody who would have come meanwhile. "
        f"First one rate for all, then {share:.0%} of what each server itself did at best in the round. "
        "The client is Python and shares the machine: its own lag is in the last column.",
    ]
    for kind, what in dict.fromkeys((key[1], key[2]) for key in opened):
        model, form = what.split(" ")
        title = "one rate for all" if kind == "fixed" else f"{share:.0%} of its own highest rate"
        lines += [
            "",
            f"**{MODEL_NAMES[model]}, {FORM_NAMES[form]}, {title}**",
            "",
            "| server | req/s asked | p50 ms | p90 ms | p99 ms | p99.9 ms | p99 to Triton (Python backend) "
            "| p99 to pellucid, recording off | client's lag, p99 ms |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for name, label in result["servers"].items():
            values = opened.get((name, kind, what, 0))
            if not values:
                continue
            times = " | ".join(f"{median(values, q) / 1e3:.2f}" for q in PERCENTILES)
            lines.append(
                f"| {label} | {median(values, 'rate'):,.0f} | {times} "
                f"| {ratio(values, opened.get((TRITON, kind, what, 0)), 'p99_us')} "
                f"| {ratio(values, opened.get((OFF, kind, what, 0)), 'p99_us')} "
                f"| {median(values, 'lag_p99_us') / 1e3:.2f} |"
            )
    if opened:
        lines += ["", *(f"![{alt}](plots/{file})" for file, alt in _open_files(opened).items())]
    return lines


def _open_files(opened: dict[Key, Values]) -> dict[str, str]:
    kinds = dict.fromkeys((key[1], key[2]) for key in opened)
    return {f"open-{kind}-{what.replace(' ', '-')}.svg": f"open loop, {what}, {kind}" for kind, what in kinds}


def plots(result: dict[str, Any]) -> dict[str, str]:
    """SVG by file name."""
    closed, opened = gather(result)
    names, made = result["servers"], {}
    for file, (model, form) in FIGURES.items():
        curves = _named(names, _curves(closed, model, form).get)
        if curves:
            title = f"{MODEL_NAMES[model]}, {FORM_NAMES[form]}"
            made[file] = plot.lines(title, "connections", "requests a second", curves)
    marks = {float(number): name for number, name in enumerate(PERCENTILES.values())}
    for file in _open_files(opened):
        _, kind, model, form = file.removesuffix(".svg").split("-")

        def curve(
            server: str, kind: str = kind, what: str = f"{model} {form}"
        ) -> list[tuple[float, float]] | None:
            values = opened.get((server, kind, what, 0))
            if not values:
                return None
            return [(float(n), median(values, q) / 1e3) for n, q in enumerate(PERCENTILES)]

        title = f"Open loop, {model} in {FORM_NAMES[form]}, " + (
            "one rate for all"
            if kind == "fixed"
            else f"{result['settings']['open_share']:.0%} of own highest rate"
        )
        made[file] = plot.lines(
            title, "percentile", "ms", _named(names, curve), x_names=marks, is_x_log=False, is_y_log=True
        )
    return made


def _named(
    names: dict[str, str], curve: Callable[[str], list[tuple[float, float]] | None]
) -> dict[str, list[tuple[float, float]]]:
    """Curves by title, in the servers' order; the second run of one server is in no picture."""
    found = {title: curve(name) for name, title in names.items() if name != "pellucid-again"}
    return {_short(title): line for title, line in found.items() if line}


def _short(title: str) -> str:
    return (
        title.replace("pellucid, ", "pellucid ")
        .replace("Python backend", "Python b.")
        .replace(" (default)", "")
    )


def _how(result: dict[str, Any]) -> list[str]:
    settings, machine = result["settings"], result["machine"]
    server, client = settings["server_cpus"], settings["client_cpus"]
    places = f"servers on processor {server}, clients on {client}" if server or client else (
        "server and client share all processors"
    )  # fmt: skip
    lines = [
        "",
        "### How",
        "",
        f"Rounds: {settings['rounds']}, every server started afresh in each, one at a time, the order "
        "reversed every second round; one answer of each kind compared with bare ONNX Runtime (1e-5) before "
        f"it counts; warm-up, then loads of {settings['slice']:g} s (img224 in JSON: twice that); open loops "
        f"of {settings['open_seconds']:g} s over {settings['open_connections']} connections; {places}. "
        "One thread of ONNX Runtime a model, the same ONNX files, the same bodies. JSON in means JSON out; "
        "binary and shared memory ask for their outputs in the same way. wrk asks over HTTP, h2load over "
        "gRPC (one call in flight a connection).",
        "",
        "pellucid records as it does by default unless the row says otherwise: files on "
        f"{machine['file_system']} (one fdatasync {machine['fdatasync_ms']} ms), no sinks; its sequencer "
        "runs beside the server and on the same processors while the load goes on, and what it has not "
        "taken in when a server's part ends is thrown away with the site.",
        "",
        "Left at their defaults: MLServer (one process, no adaptive batching), KServe (one worker, no "
        "batcher), Mosec (one worker process a model, no batching). Triton: dynamic batching up to 32 "
        "without delay, one instance a model. pellucid batches what arrives together, up to 32, 16 and 4 "
        "rows. Rows with 2 workers or instances are compared with each other.",
        "",
        "| server | asked over | command |",
        "|---|---|---|",
    ]
    told = result.get("commands", {})
    for name, title in result["servers"].items():
        lines.append(f"| {title} | {', '.join(result['forms'][name])} | `{told.get(name, '')}` |")
    lines += ["", *(f"- {what}: `{line}`" for what, line in result["clients"].items())]
    versions = "; ".join(f"{name}: {', '.join(found)}" for name, found in result["versions"].items())
    tools = ", ".join(f"{name}: {told}" for name, told in result["tools"].items())
    libraries = ", ".join(f"{name} {found}" for name, found in machine["libraries"].items())
    lines += [
        "",
        f"Machine: {machine['processor']}, {machine['logical_processors']} logical processors, "
        f"{machine['memory_gib']} GiB, kernel {machine['kernel']}, load average before "
        f"{machine['load_average']}. Python {machine['python']}, {libraries}. Peers: {versions or 'none'}. "
        f"Clients: {tools}. Commit {machine['commit']}. Took {result.get('took_s', 0):.0f} s.",
        "",
        *_left_out(result),
        "",
        *_void(result),
    ]
    return lines


def _left_out(result: dict[str, Any]) -> list[str]:
    """Loads that a server was too slow for, by how often."""
    counts: dict[str, int] = {}
    for part in result["rounds"]:
        for line in part["left_out"]:
            what = f"{result['servers'][part['server']]}, {line.partition(':')[0]}"
            counts[what] = counts.get(what, 0) + 1
    told = "; ".join(f"{what} (in {count} rounds)" for what, count in counts.items())
    return [f"Left out, where not every connection would have been answered once: {told or 'nothing'}."]


def _void(result: dict[str, Any]) -> list[str]:
    """What did not count, and why: never silently."""
    void = [
        f"- round {part['round']}, {result['servers'][part['server']]}: {line}"
        for part in result["rounds"]
        for line in part["void"]
    ]
    return [f"Void: {len(void)} loads.", "", *void] if void else ["Void: no load."]
