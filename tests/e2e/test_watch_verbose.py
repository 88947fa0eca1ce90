"""VERBOSE for a while: layers and times, no values, the same bits, an entry, and an end of its own."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pellucid.app.ledger import open_ledger, settle
from pellucid.app.site import Site
from pellucid.app.verbose import ask_verbose
from pellucid.cli.main import cli
from pellucid.core.entry import parse_entry
from pellucid.errors import UsageError
from pellucid.testing.server import serving
from pellucid.testing.site import configure, make_site

pytestmark = pytest.mark.e2e
BODY = json.dumps(
    {"inputs": [{"name": "features", "shape": [1, 20], "datatype": "FP32", "data": [0.5] * 20}]}
).encode()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    settings = {"baseline_skip": 0, "baseline_executions": 20}
    return make_site(tmp_path_factory.mktemp("made") / "site", serving=settings)


def lines(log: Path) -> list[dict[str, Any]]:
    """Lines of VERBOSE among what the server wrote."""
    told = [line for line in log.read_text().splitlines() if line.startswith('{"event": "verbose"')]
    return [json.loads(line) for line in told]


def connected(port: int) -> closing[http.client.HTTPConnection]:
    return closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30))


def ask(connection: http.client.HTTPConnection) -> tuple[str, Any]:
    connection.request("POST", "/v2/models/credit/infer", BODY)
    reply = connection.getresponse()
    answer = json.loads(reply.read())
    assert reply.status == 200
    return reply.headers["pellucid-call"], answer["outputs"]


@pytest.mark.parametrize("workers", [1, 2])
def test_layers_are_timed_while_calls_are_answered_with_the_same_bits(
    site: Site, tmp_path: Path, workers: int
) -> None:
    configure(site, serving={"workers": workers})
    log = tmp_path / "log"
    with serving(site.root, log=log) as server, connected(server.port) as connection:
        before = [ask(connection) for _ in range(25)]
        arguments = [
            "verbose",
            "credit",
            "--for",
            "2",
            "--reason",
            "p99 is high",
            "--site",
            str(site.root),
        ]
        asked = CliRunner().invoke(cli, [*arguments, "--json"], standalone_mode=False)
        wish = json.loads(asked.output)
        answers, keys = [], []
        while len(told := [t for t in lines(log) if t["asked"] == wish["entry"]]) < workers:
            key, outputs = ask(connection)
            keys.append(key)
            answers.append(outputs)
        after = [ask(connection) for _ in range(5)]
    assert all(outputs == before[0][1] for outputs in answers)
    assert all(outputs == before[0][1] for _, outputs in [*before, *after])
    busy = max(told, key=lambda each: each["executions"])
    assert 0 < busy["executions"] <= len(keys)
    layers = {layer["name"]: layer for layer in busy["layers"]}
    assert {layer["runs"] for layer in layers.values()} == {busy["executions"]}
    assert "Softmax" in {layer["op"] for layer in layers.values()}
    assert [each["ns"] for each in busy["layers"]] == sorted((x["ns"] for x in layers.values()), reverse=True)
    settle(site)
    with closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
        engine = {e.data["engine"] for e in entries if e.type == "call" and e.id in keys}
    assert len(engine) == 1
    config = [entry.data for entry in entries if entry.type == "config" and "what" in entry.data]
    (wished,) = [entry for entry in entries if entry.id == wish["entry"]]
    assert (wished.data["what"], wished.data["reason"], wished.data["seconds"]) == (
        "verbose",
        "p99 is high",
        2,
    )
    ends = [data for data in config if data["what"] == "verbose_ended" and data["asked"] == wish["entry"]]
    assert sorted(end["executions"] for end in ends) == sorted(t["executions"] for t in told)
    assert not any(end["refused"] for end in ends)
    # what is told of a layer is this and no more: nothing that came with a call can be among it
    assert all(set(each) == {"name", "op", "runs", "ns"} for told_of in told for each in told_of["layers"])
    head = {"event", "model", "version", "asked", "executions", "layers_left_out", "layers"}
    assert all(set(each) == head for each in told)


def test_a_wish_without_reason_or_end_is_none(site: Site) -> None:
    with pytest.raises(UsageError, match="reason"):
        ask_verbose(site, "credit", 5, " ")
    with pytest.raises(UsageError, match="seconds"):
        ask_verbose(site, "credit", 4_000, "why not")
