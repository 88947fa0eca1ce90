"""A build as spans: a collector on loopback gets the whole tree, and no name of a place or a person."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pellucid.app.build import build
from pellucid.app.site import create_site
from pellucid.build import spans
from pellucid.build.spans import Spans
from pellucid.errors import MissingExtraError, ParseError, PellucidError, UsageError
from pellucid.testing.builds import write_recipe

pytestmark = pytest.mark.e2e

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STAGES = ["stage prepare", "stage compile", "stage golden"]


class Collector:
    """OTLP over HTTP, as far as traces go; keeps what it got."""

    def __init__(self, status: int = 200) -> None:
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                outer.paths.append(self.path)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def resources(self) -> list[Any]:
        return [r for body in self.bodies for r in ExportTraceServiceRequest.FromString(body).resource_spans]

    def spans(self) -> dict[str, Any]:
        found = [s for r in self.resources() for scope in r.scope_spans for s in scope.spans]
        once = [s.name for s in found if s.name != "phase end"]  # each stage's child ends for itself
        assert len(set(once)) == len(once)
        return {s.name: s for s in found}


@pytest.fixture
def otel(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that says nothing of telemetry and takes no proxy to loopback."""
    for name in [n for n in os.environ if n.startswith("OTEL_") or n in ("TRACEPARENT", "TRACESTATE")]:
        monkeypatch.delenv(name)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    return monkeypatch


@pytest.fixture
def collector(otel: pytest.MonkeyPatch) -> Iterator[Collector]:
    found = Collector()
    otel.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
    yield found
    found.close()


def attributes(span: Any) -> dict[str, str]:
    return {item.key: item.value.string_value for item in span.attributes}


def test_a_build_is_one_tree_under_its_caller_and_names_no_place_or_person(
    collector: Collector, otel: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    otel.setenv("TRACEPARENT", f"00-{TRACE}-{CALLER}-01")
    site = create_site(tmp_path / "site", node="test1")
    seen: list[str] = []
    build(site, write_recipe(tmp_path / "recipes", "credit_like", name="spanned"), seen.append)
    assert set(collector.paths) == {"/v1/traces"}
    found = collector.spans()
    assert {s.trace_id.hex() for s in found.values()} == {TRACE}
    whole = found["build"]
    assert whole.parent_span_id.hex() == CALLER
    said = {
        "pellucid.model": "spanned", "pellucid.version": "1.0.0", "pellucid.backend": "onnxruntime",
        "pellucid.target": "cpu", "pellucid.precision": "fp32",
    }  # fmt: skip
    assert attributes(whole) == said | {"pellucid.outcome": "built"}
    assert sorted(n for n in found if n.startswith("stage")) == sorted(STAGES)
    for name in STAGES:
        assert found[name].parent_span_id == whole.span_id
        assert attributes(found[name]) == said
    assert found["phase build"].parent_span_id == found["stage compile"].span_id
    assert {f"phase {name}" for name in seen} == {n for n in found if n.startswith("phase")}
    for inner in found.values():
        assert whole.start_time_unix_nano <= inner.start_time_unix_nano <= inner.end_time_unix_nano
        assert inner.end_time_unix_nano <= whole.end_time_unix_nano
    assert all(attributes(span) in (said, said | {"pellucid.outcome": "built"}) for span in found.values())
    assert not [span for span in found.values() if span.events or span.links or span.status.message]
    known = {"service.name", "service.version", "service.instance.id"}
    known |= {f"telemetry.sdk.{word}" for word in ("language", "name", "version")}
    assert all(set(attributes(r.resource)) <= known for r in collector.resources())
    assert str(tmp_path).encode() not in b"".join(collector.bodies)


def test_a_build_that_failed_says_how_without_the_words_of_its_error(
    collector: Collector, otel: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    otel.setenv("OTEL_SERVICE_NAME", "ours")
    site = create_site(tmp_path / "site", node="test1")
    with pytest.raises(PellucidError) as caught:
        build(site, write_recipe(tmp_path / "recipes", b"no onnx", name="broken"))
    assert isinstance(caught.value, ParseError)
    found = collector.spans()
    assert attributes(found["build"])["pellucid.outcome"] == ParseError.code
    assert found["build"].status.code == 2
    assert found["build"].status.message == ParseError.code
    assert [r for r in collector.resources() if attributes(r.resource)["service.name"] != "ours"] == []
    assert b"expected ONNX" not in b"".join(collector.bodies)
    assert str(tmp_path).encode() not in b"".join(collector.bodies)


def test_a_recipe_that_does_not_hold_is_the_builds_own_error(collector: Collector, tmp_path: Path) -> None:
    site = create_site(tmp_path / "site", node="test1")
    with pytest.raises(UsageError):
        build(site, write_recipe(tmp_path / "recipes", "credit_like", precision="fp7"))
    assert attributes(collector.spans()["build"]) == {"pellucid.outcome": "recipe"}


def test_a_collector_that_refuses_costs_no_build(otel: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = Collector(status=400)
    otel.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{refusing.url}/elsewhere")
    site = create_site(tmp_path / "site", node="test1")
    try:
        assert build(site, write_recipe(tmp_path / "recipes", "credit_like")).folder.is_dir()
    finally:
        refusing.close()
    assert refusing.paths == ["/elsewhere"]


def test_nothing_is_imported_without_a_collector(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from pathlib import Path\nfrom pellucid.build.spans import Spans\n"
        "with Spans(Path('nothing.yaml'), {'TRACEPARENT': 'x'}) as spans:\n    spans.phase('prepare')\n"
        "try:\n    Spans(Path('nothing.yaml'), {'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://127.0.0.1:1'})\n"
        "except Exception as error:\n    print(type(error).__name__, error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith(MissingExtraError.__name__)
    assert "pip install 'pellucid[otel]'" in done.stdout


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_standard_variables_decide(said: dict[str, str], wanted: bool) -> None:
    assert spans.is_wanted(said) is wanted


def test_another_protocol_is_refused_by_name(tmp_path: Path) -> None:
    said = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with pytest.raises(UsageError, match="expected http/protobuf, got 'grpc'"):
        Spans(tmp_path / "recipe.yaml", said)
