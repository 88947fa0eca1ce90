"""What OpenTelemetry's standard variables ask for: the rules that builds and calls share.

Off, unless a variable names a collector. Source: OpenTelemetry's environment variable specification
and that of its OTLP exporter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pellucid.errors import MissingExtraError, UsageError

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL: Final = "http/protobuf"
_OFF: Final = "set OTEL_TRACES_EXPORTER=none"


def is_wanted(said: Mapping[str, str]) -> bool:
    """Whether the environment names a collector and does not switch traces off.

    Raises:
        UsageError: It does, with a protocol this version does not speak.
    """
    is_off = said.get("OTEL_SDK_DISABLED", "").lower() == "true" or said.get("OTEL_TRACES_EXPORTER") == "none"
    if is_off or not _first(said, ENDPOINTS):
        return False
    protocol = _first(said, PROTOCOLS) or PROTOCOL
    if protocol != PROTOCOL:
        raise UsageError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL: expected {PROTOCOL}, got {protocol!r:.40}",
            hint=f"name the collector's HTTP endpoint, or {_OFF}",
        )
    return True


def missing_library(said: Mapping[str, str], name: str | None) -> MissingExtraError:
    """The error where traces are wanted and a library for them is not installed."""
    return MissingExtraError(
        f"traces to {_first(said, ENDPOINTS)} need the library {name!r}, which is not installed",
        hint=f"pip install 'pellucid[otel]', or {_OFF}",
    )


def resource_attributes(said: Mapping[str, str], version: str) -> dict[str, str]:
    """What we say of ourselves, beside what the environment says: its name for the service wins."""
    named = "OTEL_SERVICE_NAME" in said or "service.name=" in said.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {"service.version": version} | ({} if named else {"service.name": "pellucid"})


def _first(said: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((said[name] for name in names if said.get(name)), "")
