"""Print what a TensorRT module has, as JSON: {"version": text, "classes": {class: {member: docstring}}}.

    python tensorrt_names.py MODULE

Runs in a judge's environment, over the stub in place of NVIDIA's libraries.
"""

from __future__ import annotations

import importlib
import json
import sys


def names(module) -> dict[str, dict[str, str]]:
    """Members of every public class, with their docstrings."""
    kinds = {n: getattr(module, n) for n in dir(module) if not n.startswith("_")}
    return {
        name: {
            member: getattr(getattr(kind, member, None), "__doc__", "") or ""
            for member in dir(kind)
            if not member.startswith("_") or member == "__init__"
        }
        for name, kind in kinds.items()
        if isinstance(kind, type)
    }


if __name__ == "__main__":
    found = importlib.import_module(sys.argv[1])
    json.dump({"version": found.__version__, "classes": names(found)}, sys.stdout)
