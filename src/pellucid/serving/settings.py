"""Trace and log settings: what is in force can be read; what a change would need is checked and refused.

Every call is recorded in the ledger whatever these say, and what the server logs is for configuration
and policy to decide, so a client can change neither. A request that changes nothing is answered like
any other. Source: serving conformance list, OIP-130 and OIP-135.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pellucid.errors import FormatError, PolicyDeniedError

LOG: Final[dict[str, Any]] = {
    "log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0,
    "log_format": "default",
}  # fmt: skip
TRACE: Final[dict[str, Any]] = {
    "trace_file": "", "trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1",
    "log_frequency": "0", "trace_mode": "triton",
}  # fmt: skip
_LEVELS: Final = ("OFF", "TIMESTAMPS", "TENSORS")


def ask_log(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Log settings in force, when the changes asked for are none.

    Raises:
        FormatError: An unknown setting, or a value of the wrong kind; nothing was changed.
        PolicyDeniedError: A change.
    """
    return _ask(changes, LOG, "log setting", _log_problem)


def ask_trace(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Trace settings in force, when the changes asked for are none; raises as ``ask_log``."""
    given = {name: TRACE.get(name) if value is None else value for name, value in changes.items()}
    if isinstance(given.get("trace_level"), str):  # one level may come without its list
        given["trace_level"] = [given["trace_level"]]
    return _ask(given, TRACE, "trace setting", _trace_problem)


def _ask(
    changes: Mapping[str, Any],
    in_force: dict[str, Any],
    subject: str,
    problem: Callable[[str, Any], str],
) -> dict[str, Any]:
    for name, value in changes.items():
        if name not in in_force:
            raise FormatError(f"{subject}: expected one of {', '.join(in_force)}, got {name!r:.60}")
        if text := problem(name, value):
            raise FormatError(f"{subject} {name}: expected {text}, got {value!r:.60}")
    changed = sorted(name for name, value in changes.items() if value != in_force[name])
    if changed:
        raise PolicyDeniedError(
            f"{subject}s: expected no change, got {', '.join(changed)}",
            hint="configuration and policy decide what is logged; every call is in the ledger",
        )
    return dict(in_force)


def _log_problem(name: str, value: Any) -> str:
    if name == "log_verbose_level":
        return "" if type(value) is int and value >= 0 else "an integer of 0 or more"
    if name == "log_format":
        return "" if value in ("default", "ISO8601") else "default or ISO8601"
    if name == "log_file":
        return "" if type(value) is str else "a string"
    return "" if type(value) is bool else "true or false"


def _trace_problem(name: str, value: Any) -> str:
    if name == "trace_level":
        is_known = type(value) is list and value and all(level in _LEVELS for level in value)
        return "" if is_known else f"a list of {', '.join(_LEVELS)}"
    if type(value) is not str:
        return "a string"
    if name in ("trace_file", "trace_mode"):
        return ""
    digits = value[1:] if name == "trace_count" and value == "-1" else value
    return "" if digits.isdecimal() and len(digits) < 20 else "a decimal number"
