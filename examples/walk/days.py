"""Two days of real calls over HTTP, and which of them shared a batch."""

from __future__ import annotations

import hashlib
import json
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from walk import crowd, log, thief
from walk.server import configure
from walk.stage import WIDTH, BrokenError
from walk.state import FIRST_DAY, Walk, credit_ask

PATIENCE_US = 2000  # a call waits at most this long for company
PUBLISHED_S = 30.0  # limit: entries are in the published log long before


def first_day(walk: Walk) -> None:
    stage = walk.stage
    stage.station(
        "The first day",
        "The server admits both packages, or refuses with every finding. Its port is on loopback.",
    )
    models = [str(path.relative_to(walk.site)) for path in walk.archives.values()]
    configure(walk.site, models, PATIENCE_US)
    stage.good(f"ready after {walk.server.start():.1f} s: both packages verified, judged, golden inputs run")
    asks = [credit_ask(n, a) for n, a in enumerate(walk.applicants[:FIRST_DAY])]
    walk.replies = send(walk, asks)
    stage.good(f"{len(asks)} applications decided, {crowd.CLIENTS} clients at once")
    wait_for_entries(walk, len(asks))
    walk.server.stop()
    thief.copy_site(walk.site, walk.site / "tampered" / "older")
    stage.good("evening: the server stops; somebody keeps a copy of the folder as it is now")


def second_day(walk: Walk) -> None:
    stage = walk.stage
    stage.station(
        "The second day",
        "Applications and letters arrive together, half of them as JSON, half as binary tensors. Calls that\n"
        "arrive together share a batch (here a call waits at most 2 ms for company); every batch is padded\n"
        "to a fixed bucket.",
    )
    walk.server.start()
    asks = [credit_ask(n, a) for n, a in enumerate(walk.applicants)][FIRST_DAY:]
    letters = digit_asks(walk.site / "recipes" / "digits")
    began = time.monotonic()
    walk.replies += send(walk, [*asks, *letters])
    seconds = time.monotonic() - began
    wait_for_entries(walk, len(walk.replies))
    stage.good(f"{len(asks) + len(letters)} calls in {seconds:.1f} s, {crowd.CLIENTS} clients at once")
    walk.entries = log.calls(walk.ledger)
    histogram(walk)
    stage.say("  one line of what operators see (the policy selects the fields):", "dim")
    shown = json.dumps(json.loads(operators_line(walk)))
    stage.lines("\n".join(textwrap.wrap(stage.shortened(shown), WIDTH - 4, break_on_hyphens=False)))


def operators_line(walk: Walk) -> str:
    """The newest call in the structured log on the server's stdout."""
    lines = walk.server.log.read_text().splitlines()
    return next(line for line in reversed(lines) if '"type":"call"' in line)


def digit_asks(folder: Path) -> list[crowd.Ask]:
    """The post room next door reads digits at the same time."""
    import numpy as np

    with np.load(folder / "validation.npz") as data:
        images = data["image"][:100]
    return [
        crowd.Ask(
            "digits", "image", "probabilities", (1, 1, 8, 8), image.tobytes(),
            hashlib.sha256(f"letter {number}".encode()).hexdigest()[:32],
        )
        for number, image in enumerate(images)
    ]  # fmt: skip


def send(walk: Walk, asks: Sequence[crowd.Ask]) -> list[crowd.Reply]:
    try:
        replies = crowd.call_all(walk.server.port, asks)
    except RuntimeError as error:
        raise BrokenError(f"calls: expected an answer to each, got {error}") from error
    walk.stage.need(all(r.call for r in replies), "calls: expected a call key with every answer, got none")
    return replies


def wait_for_entries(walk: Walk, count: int) -> None:
    """Until the published log holds every call that was answered."""
    until = time.monotonic() + PUBLISHED_S
    wanted = {reply.call for reply in walk.replies}
    while not wanted <= log.calls(walk.ledger).keys():
        if time.monotonic() > until:
            missing = len(wanted - log.calls(walk.ledger).keys())
            raise BrokenError(
                f"ledger: expected {count} calls within {PUBLISHED_S:.0f} s, {missing} are missing"
            )
        time.sleep(0.1)


def histogram(walk: Walk) -> None:
    stage = walk.stage
    buckets = Counter(data["bucket"] for data in walk.entries.values())
    shared = sum(data["batch"] is not None for data in walk.entries.values())
    widest = max(buckets.values())
    for bucket in sorted(buckets):
        count = buckets[bucket]
        stage.say(f"    bucket {bucket:>2}  {'█' * max(1, round(50 * count / widest))} {count}", "cyan")
    share = shared / len(walk.entries)
    stage.need(share >= 1 / 3, f"batches: expected a third of the calls to share one, got {share:.0%}")
    stage.good(f"{share:.0%} of {len(walk.entries)} calls shared their batch with a stranger")
    stage.prove(f"{share:.0%} of calls shared a batch", f"{len(walk.entries)} entries", "ledger/tile/")
