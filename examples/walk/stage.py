"""The stage: says what happens, runs the real commands, and stops at the first broken promise."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

LONG_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
BLANKS = re.compile(r"(?:[ ]*\n){3,}")
WIDTH = 100  # of everything the demo prints into a pipe
COMMAND_S = 100.0  # limit: no single command of the demo may take longer
KEEP = ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "SYSTEMROOT", "COVERAGE_PROCESS_START")


class BrokenError(Exception):
    """A promise of the demo did not hold; the message says which."""


@dataclass
class Stage:
    """Speaks and acts for the demo in one folder.

    Attributes:
        folder: The site, ``.demo`` by default.
        proven: What has been shown so far: what, how, where to look.
    """

    folder: Path
    console: Console
    proven: list[tuple[str, str, str]] = field(default_factory=list)
    number: int = 0
    began: float = field(default_factory=time.monotonic)

    # -- speaking -------------------------------------------------------------------------------

    def station(self, title: str, words: str = "") -> None:
        """Begin the next part of the walk."""
        self.number += 1
        self.console.print()
        self.console.rule(Text(f" {self.number}  {title} ", style="bold"), align="left", style="cyan")
        if words:
            self.console.print(Text(words, style="dim"))
            self.console.print()

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style=style))

    def good(self, text: str) -> None:
        self.console.print(Text.assemble(("  ✓ ", "green"), text))

    def lines(self, text: str) -> None:
        """A program's own words, set in a little."""
        text = BLANKS.sub("\n\n", self.short(text)).strip("\n")
        for line in text.splitlines():
            line = line.rstrip()
            line = line[: WIDTH - 4] if set(line.strip()) == {"─"} else line
            self.console.print(Text("    " + line), soft_wrap=True)

    def shortened(self, text: str) -> str:
        return LONG_DIGEST.sub(r"\1…", text)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
        for column in columns:
            made.add_column(column, overflow="fold")
        for row in rows:
            made.add_row(*[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row])
        self.console.print(made)

    def prove(self, what: str, how: str, where: str) -> None:
        """Remember for the table at the end."""
        self.proven.append((what, how, where))

    # -- acting ---------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Little more than nothing, and ONNX Runtime's usage reporting off."""
        kept = {name: os.environ[name] for name in KEEP if name in os.environ}
        return kept | {
            "COLUMNS": str(WIDTH - 4),
            "ORT_DISABLE_TELEMETRY": "1",
            "PELLUCID_SITE": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUTF8": "1",
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-I", "-m", "pellucid", *words]

    def show(self, *words: str) -> None:
        """Print a command as the reader would type it."""
        text = shlex.join(self.short(word) for word in words)
        self.console.print(Text.assemble(("  $ ", "cyan"), (text, "bold")), soft_wrap=True)

    def short(self, text: object) -> str:
        return str(text).replace(f"{self.folder}", self.folder.name)

    def tell(self, *words: str, site: Path | None = None) -> str:
        """Run a verb and print what it prints for people."""
        self.show("pellucid", *words)
        done = self._run(self.command(*words), site)
        self._expect(done, words, 0)
        self.lines(done.stdout)
        return done.stdout

    def ask(self, *words: str, site: Path | None = None, quiet: bool = False) -> Any:
        """Run a verb with ``--json`` and give its answer."""
        if not quiet:
            self.show("pellucid", *words)
        done = self._run(self.command(*words, "--json"), site)
        self._expect(done, words, 0)
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError:
            raise BrokenError(f"pellucid {words[0]}: expected JSON, got {done.stdout[:300]!r}") from None

    def refuse(self, *words: str, code: int, reason: Sequence[str], site: Path | None = None) -> str:
        """Run a verb that must fail with this exit code and these words; give its reason."""
        self.show("pellucid", *words)
        done = self._run(self.command(*words), site)
        return self.check_refusal(done, f"pellucid {words[0]}", code, reason)

    def script(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run any other program."""
        return subprocess.run(
            list(words), env=self.environment(), cwd=cwd, capture_output=True, text=True,
            timeout=COMMAND_S, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    def check_refusal(
        self, done: subprocess.CompletedProcess[str], what: str, code: int, reason: Sequence[str]
    ) -> str:
        """The lines that say why, once exit code and words are as they must be."""
        said = (done.stdout + done.stderr).strip()
        if done.returncode != code:
            raise BrokenError(f"{what}: expected exit {code}, got {done.returncode}: {said[-1500:]}")
        missing = [word for word in reason if word.lower() not in said.lower()]
        if missing:
            raise BrokenError(
                f"{what}: expected a reason with {', '.join(map(repr, missing))}, got {said[-1500:]}"
            )
        return self.short(said)

    def need(self, holds: object, promise: str) -> None:
        """Stop unless it holds."""
        if not holds:
            raise BrokenError(promise)

    def _run(self, words: Sequence[str], site: Path | None) -> subprocess.CompletedProcess[str]:
        environment = self.environment()
        if site is not None:
            environment["PELLUCID_SITE"] = str(site)
        return subprocess.run(
            list(words), env=environment, capture_output=True, text=True, timeout=COMMAND_S,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    def _expect(self, done: subprocess.CompletedProcess[str], words: Sequence[str], code: int) -> None:
        if done.returncode != code:
            said = (done.stdout + done.stderr).strip()[-2000:]
            told = " ".join(map(self.short, words))
            raise BrokenError(f"pellucid {told}: expected exit {code}, got {done.returncode}\n{said}")
