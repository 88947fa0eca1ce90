"""Calls as spans: a collector on loopback gets each call below its caller's span, and no person."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pellucid.app import traces
from pellucid.app.ledger import open_ledger, settle
from pellucid.app.site import Site
from pellucid.core.entry import parse_entry
from pellucid.errors import UsageError
from pellucid.testing.server import ServerProcess
from pellucid.testing.site import make_site

pytestmark = pytest.mark.e2e
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{CALLER}-01", f"00-{TRACE[::-1]}-{CALLER}-00"
BODY = json.dumps(
    {"inputs": [{"name": "features", "shape": [1, 20], "datatype": "FP32", "data": [0.5] * 20}]}
).encode()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("made") / "site")


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", bodies
    server.shutdown()
    server.server_close()
    thread.join()


def ask(server: ServerProcess, body: bytes = BODY, path: str = "credit", **headers: str) -> Any:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request("POST", f"/v2/models/{path}/infer", body, headers)
        reply = connection.getresponse()
        reply.read()
        return reply


def spans(bodies: list[bytes]) -> list[Any]:
    found = [r for body in bodies for r in ExportTraceServiceRequest.FromString(body).resource_spans]
    return [span for resource in found for scope in resource.scope_spans for span in scope.spans]


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def test_every_call_is_a_span_below_its_callers(site: Site, collector: tuple[str, list[bytes]]) -> None:
    url, bodies = collector
    chosen = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    server = ServerProcess(site.root).start(chosen)
    try:
        below, own = ask(server, traceparent=SAMPLED), ask(server)
        packed = ask(server, traceparent=SAMPLED, **{"accept-encoding": "gzip"})
        unsampled = ask(server, traceparent=UNSAMPLED)
        wrong, nobody = ask(server, b"{", traceparent=SAMPLED), ask(server, path="nobody")
    finally:
        assert server.stop() == 0
    assert [r.status for r in (below, own, packed, unsampled, wrong, nobody)] == [
        200,
        200,
        200,
        200,
        400,
        404,
    ]
    found = spans(bodies)
    by_call = {attributes(s)["pellucid.call"]: s for s in found if s.name.startswith("infer")}
    assert set(by_call) == {r.headers["pellucid-call"] for r in (below, own, packed, wrong, nobody)}

    span = by_call[below.headers["pellucid-call"]]
    assert (span.name, span.kind) == ("infer credit", 2)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, CALLER)
    assert below.headers["traceparent"] == f"00-{TRACE}-{span.span_id.hex()}-01"
    stages = {s.name: s for s in found if s.parent_span_id == span.span_id}
    assert set(stages) == {"queue", "compute"}
    assert span.start_time_unix_nano <= stages["queue"].start_time_unix_nano
    assert stages["queue"].end_time_unix_nano == stages["compute"].start_time_unix_nano
    assert stages["compute"].end_time_unix_nano <= span.end_time_unix_nano

    root = by_call[own.headers["pellucid-call"]]
    assert root.trace_id.hex() == own.headers["pellucid-trace"]
    assert root.parent_span_id == b""
    assert unsampled.headers["traceparent"].startswith(f"00-{TRACE[::-1]}-")
    assert unsampled.headers["traceparent"].endswith("-00")
    refused = by_call[wrong.headers["pellucid-call"]]
    assert attributes(refused)["error.type"] == "format"
    assert (refused.name, refused.status.code) == ("infer credit", 0)
    assert by_call[nobody.headers["pellucid-call"]].name == "infer"

    settle(site)
    with closing(open_ledger(site)) as ledger:
        entry = parse_entry(ledger.reader.get(below.headers["pellucid-call"])).data
    told = entry["stages"]
    assert span.end_time_unix_nano - span.start_time_unix_nano == told["total_ns"]
    compute = stages["compute"].end_time_unix_nano - stages["compute"].start_time_unix_nano
    assert compute == told["infer_ns"]
    sent = b"".join(bodies)
    assert b"127.0.0.1" not in sent
    assert str(site.root).encode() not in sent


def test_without_a_collector_nothing_is_traced(site: Site) -> None:
    server = ServerProcess(site.root).start({"OTEL_TRACES_EXPORTER": "none"})
    try:
        assert "traceparent" not in ask(server, traceparent=SAMPLED).headers
    finally:
        assert server.stop() == 0


def test_a_protocol_that_is_not_spoken_is_refused_and_an_off_switch_holds() -> None:
    said = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}
    with pytest.raises(UsageError, match="http/protobuf"):
        traces.open_traces("n/1/0", said | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert traces.open_traces("n/1/0", said | {"OTEL_SDK_DISABLED": "true"}) is None
    assert traces.open_traces("n/1/0", {}) is None
