"""Metrics of a running server, read as Prometheus reads them."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pellucid.app.ledger import open_ledger, settle
from pellucid.app.serve import serve
from pellucid.app.site import Site, open_site
from pellucid.app.tls import Tls
from pellucid.app.tokens import add_token, tokens_path
from pellucid.core.entry import parse_entry
from pellucid.core.metrics import METRICS
from pellucid.errors import ConfigError
from pellucid.servers.metrics.serve import MetricsListener
from pellucid.serving.doors import Knock
from pellucid.testing.certificates import Authority
from pellucid.testing.server import ServerProcess, serving
from pellucid.testing.site import configure, make_site

pytestmark = pytest.mark.e2e
MODEL = {"model": "credit", "version": "1.0.0"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("made") / "site")


@pytest.fixture
def site(made: Site, tmp_path: Path) -> Site:
    shutil.copytree(made.root, tmp_path / "site")
    return configure(open_site(tmp_path / "site"), serving={"metrics_port": 0})


def body(rows: int) -> bytes:
    item = {"name": "features", "shape": [rows, 20], "datatype": "FP32", "data": [0.5] * 20 * rows}
    return json.dumps({"inputs": [item]}).encode()


def ask(server: ServerProcess, content: bytes, path: str = "/v2/models/credit/infer") -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request("POST", path, content)
        return connection.getresponse().status


def read(server: ServerProcess) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by name, with the types of the table."""
    url = f"http://127.0.0.1:{server.ready['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=30) as reply:
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = reply.read().decode()
    kinds = {metric.name: metric.kind for metric in METRICS}
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # this parser gives every counter the ending that Triton's do not have
            short = sample.name.removesuffix("_total")
            found.setdefault(short if short in kinds else sample.name, []).append(
                (sample.labels, sample.value)
            )
        told = family.name if family.name in kinds else f"{family.name}_total"
        assert kinds[told] == family.type, told
    return found


def value(found: dict[str, list[tuple[dict[str, str], float]]], name: str, **labels: str) -> float:
    (only,) = [number for pairs, number in found[name] if pairs == labels]
    return only


def until(server: ServerProcess, **wanted: float) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Metrics once these unlabelled ones are there; a worker tells its parent every second."""
    for _ in range(20_000):
        found = read(server)
        if all(value(found, name) == number for name, number in wanted.items()):
            return found
    raise TimeoutError(f"expected {wanted}")


@pytest.mark.parametrize("workers", [1, 2])
def test_every_call_is_counted_once_by_whatever_worker_it_was_answered(site: Site, workers: int) -> None:
    configure(site, serving={"workers": workers})
    with serving(site.root) as server:
        assert [ask(server, body(rows)) for rows in (1, 1, 3, 8)] == [200] * 4
        assert ask(server, b"{") == 400
        assert ask(server, body(1), "/v2/models/nobody/infer") == 404
        found = until(server, pellucid_calls_accepted_total=6, pellucid_calls_recorded_total=6)
        assert value(found, "nv_inference_request_success", **MODEL) == 4
        assert value(found, "nv_inference_count", **MODEL) == 13
        assert value(found, "nv_inference_exec_count", **MODEL) == 4
        assert value(found, "pellucid_executions_total", bucket="1", **MODEL) == 2
        assert value(found, "pellucid_executions_total", bucket="4", **MODEL) == 1
        assert value(found, "pellucid_calls_refused_total", code="format") == 1
        assert value(found, "pellucid_calls_refused_total", code="not_found") == 1
        assert value(found, "pellucid_request_duration_seconds_count", **MODEL) == 4
        assert value(found, "pellucid_workers") == workers
        assert value(found, "pellucid_calls_open") == 0
        for stage in ("request", "queue", "compute"):
            name = f"pellucid_{stage}_duration_seconds"
            counts = [number for _, number in found[f"{name}_bucket"]]
            assert counts == sorted(counts)
            assert counts[-1] == value(found, f"{name}_count", **MODEL)
        total_us = value(found, "nv_inference_request_duration_us", **MODEL)
        parts = ("nv_inference_queue_duration_us", "nv_inference_compute_infer_duration_us")
        assert 0 < sum(value(found, name, **MODEL) for name in parts) <= total_us
        assert len(found["process_resident_memory_bytes"]) == workers
        assert value(found, "nv_cpu_memory_total_bytes") > value(found, "nv_cpu_memory_used_bytes") > 0


def test_the_ledgers_progress_is_the_ledgers(site: Site) -> None:
    with serving(site.root) as server:
        assert ask(server, body(1)) == 200
        for _ in range(20_000):
            found = read(server)
            published = value(found, "pellucid_entries_published")
            behind = [number for _, number in found["pellucid_follower_behind_entries"]]
            if published == value(found, "pellucid_entries_integrated") and not any(behind):
                break
        assert value(found, "pellucid_journal_backlog_bytes") > 0
    settle(site)
    with closing(open_ledger(site)) as ledger:
        assert 0 < published <= ledger.reader.size()


def test_only_metrics_are_told_there(site: Site) -> None:
    with serving(site.root) as server:
        base = f"http://127.0.0.1:{server.ready['metrics']}"
        for path in ("/", "/v2/health/ready", "/metrics/x"):
            with pytest.raises(urllib.error.HTTPError, match="404") as refused:
                urllib.request.urlopen(base + path, timeout=30)
            refused.value.close()


def status_of(server: ServerProcess, *, token: str = "", authority: Authority | None = None) -> int:
    context = ssl.create_default_context(cafile=authority.file) if authority else None
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = f"http{'s' if context else ''}://localhost:{server.ready['metrics']}/metrics"
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as reply:
            assert b"pellucid_calls_accepted_total" in reply.read()
            return reply.status
    except urllib.error.HTTPError as error:
        refused = error
    with refused:
        text = refused.read().decode()
    assert text.startswith(("caller: expected a token", "token: ", "metrics: expected role sre"))
    assert (refused.headers["www-authenticate"] == "Bearer") == (refused.code == 401)
    return refused.code


@pytest.mark.parametrize("workers", [1, 2])
def test_where_callers_are_asked_who_they_are_so_is_who_reads_metrics(site: Site, workers: int) -> None:
    site = configure(site, serving={"workers": workers}, doors={"authenticate": True})
    book, now_ns = tokens_path(site), time.time_ns()
    client = add_token(book, "app", ("client",), now_ns=now_ns)
    operator = add_token(book, "prometheus", ("sre",), now_ns=now_ns)
    with serving(site.root) as server:
        assert status_of(server) == 401
        assert status_of(server, token=client) == 403
        assert status_of(server, token="junk") == 401
        assert status_of(server, token=operator) == 200
    settle(site)
    with closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    alerts = [entry.data for entry in entries if entry.type == "alert"]
    refused = [data for data in alerts if data.get("kind") == "refused_at_door"]
    counted = sum(data["not_numbered"] for data in alerts if data.get("reason") == "refused_over_rate")
    assert (refused[0]["action"], refused[0]["error"]) == ("metrics", "unauthenticated")
    assert len(refused) + counted == 3  # each is told of, or counted
    assert "192.0.2" not in str(refused)
    assert any(entry.data.get("personal") for entry in entries if entry.type == "alert")


def test_where_calls_go_over_tls_so_do_metrics(site: Site, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("server")
    site = configure(site, doors={"certificate": str(files.certificate), "key": str(files.key)})
    with serving(site.root) as server:
        plain = socket.create_connection(("localhost", server.ready["metrics"]), timeout=30)
        with closing(plain):  # says nothing, and holds up nobody
            assert status_of(server, authority=authority) == 200
        with pytest.raises(OSError, match=r"reset|closed|EOF"):
            urllib.request.urlopen(f"http://localhost:{server.ready['metrics']}/metrics", timeout=30)


class Visitors:
    forwarded_header = "x-forwarded-for"

    def __init__(self) -> None:
        self.knocks: list[Knock] = []

    def __call__(self, knock: Knock) -> None:
        self.knocks.append(knock)


def test_the_door_hears_of_certificate_token_and_proxy(tmp_path: Path) -> None:
    authority, visitors = Authority(tmp_path), Visitors()
    server, client = authority.sign("server"), authority.sign("ops", client=True)
    tls = Tls(server.certificate, server.key, authority.file, print)
    context = ssl.create_default_context(cafile=authority.file)
    with closing(MetricsListener("127.0.0.1", 0, lambda: "told\n", visitors, tls.context())) as listener:
        url = f"https://localhost:{listener.port}/metrics"
        with pytest.raises(OSError, match=r"certificate required|reset|EOF"):
            urllib.request.urlopen(url, timeout=30, context=context)
        context.load_cert_chain(client.certificate, client.key)
        headers = {"authorization": "Bearer x", "x-forwarded-for": "192.0.2.7"}
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=30, context=context) as reply:
            assert reply.read() == b"told\n"
    (knock,) = visitors.knocks
    assert (knock.peer, knock.names) == ("127.0.0.1", ("CN:ops",))
    assert (list(knock.authorization), list(knock.forwarded)) == ([b"Bearer x"], [b"192.0.2.7"])


def test_beyond_loopback_nobody_unknown_reads_metrics(site: Site) -> None:
    site = configure(site, serving={"metrics_host": "0.0.0.0"})
    with pytest.raises(ConfigError, match=r"serving.metrics_host: expected a loopback address without"):
        serve(site, None, ready=lambda _: None, report=print, tell=MetricsListener)  # type: ignore[arg-type]


def test_without_a_port_nobody_listens(made: Site) -> None:
    with serving(made.root) as server:
        assert server.ready["metrics"] is None
