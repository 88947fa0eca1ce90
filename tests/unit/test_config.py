"""Configuration: what is said is read, what is misspelt is refused."""

from __future__ import annotations

import pytest

from pellucid.config import DEFAULT_CONFIG, config_digest, effective, parse_config
from pellucid.errors import ConfigError


def test_the_default_text_says_the_defaults():
    config = parse_config(DEFAULT_CONFIG.format(node="n1", origin="bank.example/credit").encode())
    assert config.site.node == "n1"
    assert config.ledger.origin == "bank.example/credit"
    assert config.ledger.record == "journaled"
    assert set(config.keys) == {"log", "builder", "qualifier", "approver", "replayer", "exporter"}


def test_effective_values_hold_every_default():
    values = effective(parse_config(b""))
    assert values["ledger"]["flush_ms"] == 20
    assert values["serving"]["nonfinite"] == "refuse"


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"[ledger]\nrecrod = 'durable'", "recrod"),
        (b"[ledger]\nrecord = 'sometimes'", "sometimes"),
        (b"[ledger]\nflush_ms = 0", "flush_ms"),
        (b"[ledger]\nflush_ms = 'soon'", "flush_ms"),
        (b"[serving]\nport = 70000", "70,000"),
        (b"[serving]\nnonfinite = 'maybe'", "maybe"),
        (b"[site]\nnode = '../up'", "../up"),
        (b"[site]\nnode = 'a/b'", "a/b"),
        (b"[keys]\nking = 'file:k'", "king"),
        (b"not toml", "valid configuration"),
        (b"\xff\xfe", "valid configuration"),
        (b"[site]\nnode = 'a'\nnode = 'b'", "valid configuration"),
    ],
)
def test_what_does_not_hold_is_refused_by_name(raw: bytes, word: str):
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    assert word in caught.value.message


def test_the_digest_is_over_the_bytes_as_they_stand():
    assert config_digest(b"a") != config_digest(b"a\n")
