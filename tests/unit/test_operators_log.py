"""The policy's audit section drives the operators' log of the sequencer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pellucid.app.ledger import open_sequencer, record_event
from pellucid.app.site import create_site


@pytest.mark.parametrize("destination", ["file:log.jsonl", "syslog://collector.example.com:514"])
def test_the_destination_of_the_policy_gets_its_fields_or_the_ledger_goes_on_without(
    tmp_path: Path, destination: str
):
    site = create_site(tmp_path / "site", node="n1")
    policy = site.root / "policy.yaml"
    text = policy.read_text()
    policy.write_text(text.replace('log_destination: "stdout:"', f'log_destination: "{destination}"'))
    assert destination in policy.read_text()
    record_event(site, "read", {"what": "test"})
    with open_sequencer(site) as sequencer:
        sequencer.drain()
    log = site.root / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    assert bool(lines) == destination.startswith("file:")
