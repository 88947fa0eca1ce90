"""What an environment says, by its backend's name. Source: spec/package.md, section 10."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def backend_version(environment: Mapping[str, Any]) -> str:
    """Version of the backend's library, as the environment reports it under the backend's name.

    A hyphen is no character of a key: ``tensorrt-rtx`` reports under ``tensorrt_rtx``.
    """
    return str(environment.get(str(environment.get("backend")).replace("-", "_"), ""))
