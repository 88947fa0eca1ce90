"""A feeder brings one sink what the ledger has, on a thread of its own, from the sink's own position.

The sequencer says how far the ledger is and goes on at once, so a sink that hangs, however long,
holds up nobody. What is handed over in memory is bounded; the rest is read again from tiles and vault.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Final

from pellucid.core.entry import Formed
from pellucid.core.times import format_time
from pellucid.ledger.follower import CHUNK, form_again, tell_erased
from pellucid.ledger.publisher import read_entries
from pellucid.ledger.vault import Vault
from pellucid.ports import Clock, Sink, Store

HANDED_MAX: Final = 4096  # limit: entries kept in memory for a sink that does not take them
HUNG_S: Final = 5.0  # a sink that takes longer over one call is said to hang
PAUSE_S: Final = (0.05, 5.0)  # first and longest pause after a failure
_LOOK_S: Final = 0.05  # how often an end looks whether the sink gets on
_LOOKS: Final = 20, 200  # until an end waits no longer: without anything got done, and altogether


class Feeder:
    """Feeds one sink: at least once, in order.

    Args:
        name: For what is reported about it.
        open_sink: Opens it; on the feeder's thread, since that may hang too.
        open_vault: Opens the vault once more: a connection of this thread's own.
        clock: Says since when a sink hangs.
        looks: How often an end looks, each time for 50 ms, before it leaves a sink that does nothing,
            and one that does something.
    """

    def __init__(
        self,
        name: str,
        open_sink: Callable[[], Sink],
        store: Store,
        open_vault: Callable[[], Vault],
        clock: Clock,
        *,
        pause_s: tuple[float, float] = PAUSE_S,
        looks: tuple[int, int] = _LOOKS,
    ) -> None:
        self.name, self._open_sink, self._store, self._open_vault = name, open_sink, store, open_vault
        self._clock, self._pause_s, self._looks = clock, pause_s, looks
        self._lock, self._news, self._stop = threading.Lock(), threading.Event(), threading.Event()
        self._size, self._handed, self._waiting = 0, deque[tuple[int, Sequence[Formed]]](), 0
        self._began: tuple[int, int] | None = None  # monotonic and wall clock of the call that runs
        self._done, self._failure = 0, ""
        self._thread = threading.Thread(target=self._run, name=f"sink {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # -- what the sequencer does; never waits for the sink

    def offer(self, start: int, formed: Sequence[Formed]) -> None:
        """New entries are committed. Kept only while the sink takes them."""
        with self._lock:
            if self._waiting + len(formed) <= HANDED_MAX:
                self._handed.append((start, formed))
                self._waiting += len(formed)
            self._size = max(self._size, start + len(formed))
        self._news.set()

    def grow(self, size: int) -> None:
        """So many entries are committed."""
        with self._lock:
            if size <= self._size:
                return
            self._size = size
        self._news.set()

    def revoke(self) -> None:
        """Something was erased: nothing that was handed over before is sent any more as it was."""
        with self._lock:
            self._handed.clear()
            self._waiting = 0
        self._news.set()

    def trouble(self) -> str | None:
        """Why the sink does not get what it should; ``None`` while it does."""
        began, failure = self._began, self._failure
        if began is not None and self._clock.monotonic_ns() - began[0] >= HUNG_S * 1e9:
            return f"hangs since {format_time(began[1])}"
        return failure or None

    def close(self) -> bool:
        """Feed what there is for as long as the sink gets on, then end.

        Returns:
            False if the sink hangs, or needs long: its thread ends with the process, and the next goes on
            from its position.
        """
        self._stop.set()
        self._news.set()
        idle, done = 0, self._done
        for _ in range(self._looks[1]):
            if not self._thread.is_alive() or idle >= self._looks[0] or self._is_hung():
                break
            self._thread.join(_LOOK_S)
            idle, done = (idle + 1 if self._done == done else 0), self._done
        return not self._thread.is_alive()

    def _is_hung(self) -> bool:
        return (self.trouble() or "").startswith("hangs")

    # -- the thread

    def _run(self) -> None:
        with ExitStack() as held:
            self._keep_on(held)

    def _keep_on(self, held: ExitStack) -> None:
        pause, feed = self._pause_s[0], None
        while True:
            self._news.wait()
            self._news.clear()
            is_last = self._stop.is_set()
            try:
                feed = feed or self._open(held)
                feed()
            except Exception as error:  # a foreign target may raise anything
                self._failure = f"{type(error).__name__}: {error}"
                self._stop.wait(pause)
                pause = min(pause * 2, self._pause_s[1])
                self._news.set()
            else:
                self._failure, pause = "", self._pause_s[0]
            if is_last:
                return

    def _open(self, held: ExitStack) -> Callable[[], None]:
        with ExitStack() as opened:  # a sink that cannot be opened is tried again, for days: keep nothing
            vault = opened.enter_context(closing(self._open_vault()))
            with self._calling():
                sink = opened.enter_context(closing(self._open_sink()))
            held.push(opened.pop_all())
        return partial(self._feed, sink, vault)

    def _feed(self, sink: Sink, vault: Vault) -> None:
        while self._feed_some(sink, vault):
            continue
        # afterwards: a tombstone stands behind every line that was formed before the erasure
        tell_erased(vault, f"told:{self.name}", partial(self._forget, sink))

    def _feed_some(self, sink: Sink, vault: Vault) -> bool:
        with self._calling():
            position = sink.position()
        formed = self._take(position, vault)
        if not formed:
            return False
        with self._calling():
            sink.apply(position, formed)
        return True

    def _take(self, position: int, vault: Vault) -> Sequence[Formed]:
        """The entries from ``position`` on, some of them: from memory, or else from the ledger."""
        with self._lock:
            while self._handed and self._handed[0][0] < position:
                self._waiting -= len(self._handed.popleft()[1])
            if self._handed and self._handed[0][0] == position:
                formed = self._handed.popleft()[1]
                self._waiting -= len(formed)
                return formed
            size = self._size
            stop = min(size, position + CHUNK, self._handed[0][0] if self._handed else size)
        if stop <= position:
            return ()
        return [form_again(raw, vault) for raw in read_entries(self._store, size, position, stop)]

    def _forget(self, sink: Sink, key: str) -> None:
        with self._calling():
            sink.forget(key)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        self._began = self._clock.monotonic_ns(), self._clock.now_ns()
        try:
            yield
            self._done += 1
        finally:
            self._began = None
