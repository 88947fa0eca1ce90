"""Members of a request's JSON: the right kind, within limits, and what came instead otherwise."""

from __future__ import annotations

from typing import Any, Final

from pellucid.errors import FormatError
from pellucid.serving.limits import ID_MAX, PARAMETER_MAX, PARAMETERS_MAX, TENSORS_MAX

# stock clients send it with every gRPC call; every answer here is a final one anyway
_HARMLESS: Final = ("triton_enable_empty_final_response",)
NO_PARAMETERS: Final[dict[str, Any]] = {}
SHARED: Final = frozenset({"shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"})


def object_of(value: Any, subject: str) -> dict[str, Any]:
    """The value, if it is a JSON object."""
    if type(value) is not dict:
        raise FormatError(f"{subject}: expected a JSON object, got {kind_of(value)}")
    return value


def kind_of(value: Any) -> str:
    """What a JSON value is, for messages."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def items_of(head: dict[str, Any], member: str) -> list[dict[str, Any]]:
    """An array of objects that each have a name."""
    value = head.get(member)
    if type(value) is not list:
        got = kind_of(value) if member in head else "none"
        raise FormatError(f"{member}: expected an array of tensors, got {got}")
    if len(value) > TENSORS_MAX:
        raise FormatError(f"{member}: expected at most {TENSORS_MAX} tensors, got {len(value):,}")
    for position, item in enumerate(value):
        object_of(item, f"{member}[{position}]")
        if type(item.get("name")) is not str:
            got = kind_of(item["name"]) if "name" in item else "none"
            raise FormatError(f"{member}[{position}].name: expected a string, got {got}")
    return value


def text_of(head: dict[str, Any], member: str, subject: str) -> str:
    """A bounded text without control characters; ``""`` when absent."""
    value = head.get(member, "")
    if type(value) is not str:
        raise FormatError(f"{subject}: expected a string, got {kind_of(value)}")
    if len(value) > ID_MAX:
        raise FormatError(f"{subject}: expected at most {ID_MAX} characters, got {len(value):,}")
    if value and not value.isprintable():
        raise FormatError(f"{subject}: expected text without control characters, got {value!r:.60}")
    return value


def parameters_of(item: dict[str, Any], subject: str) -> dict[str, Any]:
    """Parameters of a request or tensor: bounded, and of the three kinds that the protocol knows."""
    if "parameters" not in item:
        return NO_PARAMETERS
    parameters = object_of(item["parameters"], f"{subject} parameters")
    if len(parameters) > PARAMETERS_MAX:
        raise FormatError(f"{subject} parameters: expected at most {PARAMETERS_MAX}, got {len(parameters):,}")
    for name, value in parameters.items():
        _check_parameter(name, value, subject)
    return parameters


def _check_parameter(name: str, value: Any, subject: str) -> None:
    where = f"{subject} parameter {name!r:.60}"
    if len(name) > ID_MAX:
        raise FormatError(f"{where}: expected a name of at most {ID_MAX} characters, got {len(name):,}")
    if type(value) not in (str, int, float, bool):
        raise FormatError(f"{where}: expected a string, number or boolean, got {kind_of(value)}")
    if type(value) is str and len(value) > PARAMETER_MAX:
        raise FormatError(f"{where}: expected at most {PARAMETER_MAX:,} characters, got {len(value):,}")
    if name.startswith("triton_") and name not in _HARMLESS:
        raise FormatError(f"{where}: expected no reserved name 'triton_*', got one")


def refuse_unserved(parameters: dict[str, Any]) -> None:
    """Refuse what a client must not believe to be honoured: state between calls, priorities."""
    for name in ("sequence_id", "sequence_start", "sequence_end"):
        value = parameters.get(name, 0)
        if value not in (0, ""):  # False is 0, too
            raise FormatError(
                f"parameter {name!r}: expected none, got one", hint="no state is kept between calls here"
            )
    if count_of(parameters, "priority", "request"):
        raise FormatError(
            "parameter 'priority': expected 0, got another", hint="all calls have one priority here"
        )


def count_of(parameters: dict[str, Any], name: str, subject: str) -> int:
    """A parameter that is an integer of 0 or more; 0 when absent."""
    value = parameters.get(name, 0)
    if type(value) is not int or not 0 <= value < 2**63:
        raise FormatError(
            f"{subject} parameter {name!r}: expected an integer of 0 or more, got {value!r:.40}"
        )
    return value


def flag_of(parameters: dict[str, Any], name: str, subject: str) -> bool:
    """A parameter that is true or false; false when absent."""
    value = parameters.get(name, False)
    if type(value) is not bool:
        raise FormatError(f"{subject} parameter {name!r}: expected true or false, got {value!r:.40}")
    return value
