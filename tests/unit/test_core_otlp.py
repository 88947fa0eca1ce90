"""What OpenTelemetry's variables ask for, the same for builds and for calls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pellucid
from pellucid.core.otlp import is_wanted, missing_library, resource_attributes
from pellucid.errors import UsageError

URL = "http://127.0.0.1:4318"
NAMED = {"OTEL_EXPORTER_OTLP_ENDPOINT": URL}


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (NAMED, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, True),
        (NAMED | {"OTEL_SDK_DISABLED": "True"}, False),
        (NAMED | {"OTEL_SDK_DISABLED": "false"}, True),
        (NAMED | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (NAMED | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False),
        (NAMED | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_off_unless_a_collector_is_named(said: dict[str, str], wanted: bool) -> None:
    assert is_wanted(said) == wanted


def test_the_protocol_of_traces_comes_before_that_of_everything() -> None:
    both = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    assert is_wanted(NAMED | both)
    with pytest.raises(UsageError, match="expected http/protobuf, got 'grpc'"):
        is_wanted(NAMED | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


def test_a_library_that_is_missing_comes_with_its_command() -> None:
    error = missing_library(NAMED, "opentelemetry")
    assert error.message == f"traces to {URL} need the library 'opentelemetry', which is not installed"
    assert error.hint == "pip install 'pellucid[otel]', or set OTEL_TRACES_EXPORTER=none"


def test_the_environments_name_for_the_service_wins() -> None:
    assert resource_attributes({}, "1") == {"service.version": "1", "service.name": "pellucid"}
    for said in ({"OTEL_SERVICE_NAME": "bank"}, {"OTEL_RESOURCE_ATTRIBUTES": "a=b,service.name=bank"}):
        assert resource_attributes(said, "1") == {"service.version": "1"}


def test_nobody_else_reads_these_variables() -> None:
    files = Path(pellucid.__file__).parent.rglob("*.py")
    assert [file.name for file in files if re.search("OTEL_EXPORTER|OTEL_SDK", file.read_text())] == [
        "otlp.py"
    ]
