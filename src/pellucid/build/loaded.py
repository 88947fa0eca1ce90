"""Which distributions a process has loaded, with their versions: what a child reports of itself."""

from __future__ import annotations

import sys
from pathlib import Path


def loaded_packages() -> list[dict[str, str]]:
    """Distributions whose modules this process has loaded, sorted; for the worker to call last."""
    loaded = {name.partition(".")[0].encode() for name in sys.modules}
    found: dict[str, str] = {}
    for folder in dict.fromkeys(sys.path):
        for info in sorted(Path(folder).glob("*.dist-info")) if folder else []:
            if not loaded.isdisjoint(_modules_of(info)):
                said = _headers_of(info)
                found.setdefault(said["Name"], said["Version"])
    return [{"name": name, "version": found[name]} for name in sorted(found)]


def _headers_of(info: Path) -> dict[str, str]:
    """Name and version of a distribution; the library's own way loads a reader of e-mail."""
    head = (info / "METADATA").read_text("utf-8", "replace").partition("\n\n")[0]
    fields = (line.partition(":") for line in head.splitlines())
    return {"Name": "", "Version": ""} | {name: value.strip() for name, _, value in fields}


def _modules_of(info: Path) -> set[bytes]:
    """Top modules of a distribution; the library's own way reads every path of every record as a path."""
    for name in ("top_level.txt", "RECORD"):
        try:
            lines = (info / name).read_bytes().splitlines()
        except OSError:
            continue
        tops = {line.partition(b"/")[0] for line in lines}  # few: only these are looked at closely
        return {top.strip(b'"').partition(b",")[0].partition(b".")[0] for top in tops}
    return set()
