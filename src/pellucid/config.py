"""One TOML file of configuration; its digest becomes an entry at every start.

Who says what: precision stands in the recipe; what may load in the policy; recording, limits and
doors here. Unknown keys are refused with their path. Secrets appear only as key URIs.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pellucid.core.access import parse_networks, verify_roles
from pellucid.core.baseline import COUNT_MIN as BASELINE_MIN
from pellucid.core.digest import sha256
from pellucid.errors import ConfigError

ROLES: Final = ("log", "builder", "qualifier", "approver", "replayer", "exporter")
RECORD_MODES: Final = ("journaled", "durable", "unsafe_record_nothing")


class SiteSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``node`` names this machine in every call key: ``[a-z0-9][a-z0-9.-]{0,62}``."""

    node: str = "node1"


class LedgerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How calls become entries.

    Attributes:
        folder: Where the log, the journal, the board and the vault live.
        origin: Name of the log, first line of every checkpoint.
        record: ``journaled``, ``durable``, or for measurements only ``unsafe_record_nothing``.
        flush_ms: Longest time a journaled record stays out of reach of power loss.
        in_flight_max: Slots of the board: calls accepted and not yet closed.
        backlog_max_bytes: Journal bytes not yet integrated; beyond, calls are refused with 503.
        index: URI of the hot index; a path is relative to ``folder``.
        keep_outputs_max_bytes: Outputs of a row up to this size are kept in the vault, so that a
            replay can say 'within bound'; 0 keeps none.
        checkpoint_ms: Longest time between checkpoints while entries arrive.
        rotate_s, rotate_bytes: When a journal segment is closed and the next begins.
        sinks: URIs of followers beside the operators' log that the policy names.
        refusals_per_s: Refused calls get an entry each up to this rate, beyond it a signed count.
    """

    folder: str = "ledger"
    origin: str = "localhost/pellucid"
    record: str = "journaled"
    flush_ms: int = 20
    in_flight_max: int = 4096
    backlog_max_bytes: int = 2**30
    index: str = "sqlite:index.db"
    keep_outputs_max_bytes: int = 4096
    checkpoint_ms: int = 250
    rotate_s: float = 10.0
    rotate_bytes: int = 64 * 2**20
    sinks: list[str] = []
    refusals_per_s: int = 100


class ServingSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data plane's door and limits.

    Attributes:
        grpc_port: Where gRPC is answered, on the same address; 0 takes a free port, -1 leaves it out.
        models: Packages to load: paths relative to the site, ``name:version``, or a model's name for the
            newest of its packages, then and at every load on request.
        workers: Serving processes behind the ports, each with its own epoch and journal.
        batch_delay_us: How long a call may wait for company; 0: only what arrives together.
            A recipe's own ``batch_delay_us`` comes first.
        metrics_host, metrics_port: Where Prometheus finds the metrics; no port: nowhere, 0: any free
            one. They have the doors of the calls, with a role of their own.
        baseline_skip, baseline_executions: A latency baseline is made of so many executions of a
            bucket, behind so many that warm up; 0 executions: of none.
        recycle_resident_max_bytes, recycle_growth_max_bytes_per_h: Resident memory, and its growth,
            beyond which a serving process is replaced without losing a call; 0: never.
        recycle_window_s: How long growth is watched before anything is made of it.
        nonfinite: ``refuse`` or ``allow`` NaN and infinities in binary inputs; the policy may
            only be stricter.
        model_control: ``none``, or ``explicit``: clients may load and unload models. Without
            ``doors.authenticate`` every client may.
        memory_max_bytes: Resident memory of a serving process beyond which no further engine is opened,
            judged before it is, by its package's facts; 0: no ceiling.
        shared_memory: Clients of this host may name objects of ``/dev/shm`` to read inputs from and
            write outputs to, with this server's rights.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int = 8001
    models: list[str] = []
    workers: int = 1
    body_max_bytes: int = 64 * 2**20
    batch_delay_us: int = 0
    nonfinite: str = "refuse"
    queue_max: int = 1024
    model_control: str = "none"
    memory_max_bytes: int = 0
    shared_memory: bool = False
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    baseline_skip: int = 200
    baseline_executions: int = 1000
    recycle_resident_max_bytes: int = 0
    recycle_growth_max_bytes_per_h: int = 0
    recycle_window_s: float = 600.0

    @property
    def recycles(self) -> bool:
        """True where a serving process may have to be replaced: then it has a parent."""
        return bool(self.recycle_resident_max_bytes or self.recycle_growth_max_bytes_per_h)


class DoorsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may come in, and how fast. Paths are relative to the site; limits are of each process.

    Attributes:
        authenticate: Ask every caller who they are; only liveness and readiness are told to anybody.
        unsafe_open: Serve beyond loopback without asking who calls, or without TLS.
        tokens: File of API tokens (``pellucid tokens``); only their salted hashes stand in it.
        certificate, key: PEM files of the server: TLS on both ports. The key must be its owner's alone.
        client_ca: PEM file of authorities: every client must bring a certificate of theirs.
        certificates: Roles by name of a client's certificate: ``URI:``, ``DNS:``, ``EMAIL:`` or ``CN:``.
        jwks: File or https address of the keys that sign JWTs.
        jwks_ca: PEM file of authorities for that address, instead of the system's.
        jwks_refresh_s: How often the keys are read again.
        jwt_issuer, jwt_audience: ``iss`` and ``aud`` that a JWT must have.
        jwt_subject_claim, jwt_roles_claim: Claims that name the caller and their groups; dots go deeper.
        jwt_roles: Role by group; without it a group is a role by its own name.
        jwt_leeway_s: How far clocks may be apart.
        requests_per_s, bytes_per_s: Of each caller, or where nobody is asked of each address; 0: any.
        connections_max, connections_per_address_max: HTTP connections at once; 0: any. Trusted proxies
            count for the first only.
        write_timeout_s: A client that takes less than 8 KiB/s of its answer for so long is cut.
        trusted_proxies: Networks whose forwarding header says where a call comes from.
        forwarded_header: ``x-forwarded-for`` or ``forwarded``: the one that they set.
    """

    authenticate: bool = False
    unsafe_open: bool = False
    tokens: str = "tokens.json"
    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    certificates: dict[str, list[str]] = {}
    jwks: str = ""
    jwks_ca: str = ""
    jwks_refresh_s: float = 300.0
    jwt_issuer: str = ""
    jwt_audience: str = ""
    jwt_subject_claim: str = "sub"
    jwt_roles_claim: str = "roles"
    jwt_roles: dict[str, str] = {}
    jwt_leeway_s: float = 30.0
    requests_per_s: float = 0.0
    bytes_per_s: float = 0.0
    connections_max: int = 4096
    connections_per_address_max: int = 0
    write_timeout_s: float = 30.0
    trusted_proxies: list[str] = []
    forwarded_header: str = "x-forwarded-for"


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. ``keys`` maps a role to a key URI."""

    site: SiteSection = SiteSection()
    keys: dict[str, str] = {}
    ledger: LedgerSection = LedgerSection()
    serving: ServingSection = ServingSection()
    doors: DoorsSection = DoorsSection()
    packages: str = "packages"
    trust: str = "trust"
    policy: str = "policy.yaml"


DEFAULT_CONFIG: Final = """\
# pellucid: configuration of one site. Effective values: `pellucid config show`.
packages = "packages"
trust = "trust"
policy = "policy.yaml"

[site]
node = "{node}"

[keys]                      # one key a role; URIs, never secrets
log = "file:keys/log.key"              # signs checkpoints; the server never opens it
builder = "file:keys/builder.key"      # signs packages
qualifier = "file:keys/qualifier.key"  # signs what was measured on a device
approver = "file:keys/approver.key"    # signs approvals
replayer = "file:keys/replayer.key"    # signs replay reports
exporter = "file:keys/exporter.key"    # signs evidence bundles

[ledger]
folder = "ledger"
origin = "{origin}"
record = "journaled"        # or "durable": the reply waits for the disk
sinks = []                  # beside the operators' log that the policy names: ["file:logs/all.jsonl"]

[serving]
host = "127.0.0.1"
port = 8000
grpc_port = 8001            # the same protocol over gRPC; -1 leaves it out
models = []                 # packages to load, for example ["packages/credit-v1.0.0-....tar.gz"]
# metrics_port = 8002       # Prometheus: http://127.0.0.1:8002/metrics
"""

_NODE: Final = r"[a-z0-9][a-z0-9.-]{0,62}"


def parse_config(raw: bytes) -> Config:
    """Configuration of a TOML file's bytes.

    Raises:
        ConfigError: Not TOML, an unknown key, a wrong type or a value out of range.
    """
    try:
        config = msgspec.toml.decode(raw, type=Config)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(
            f"pellucid.toml: expected a valid configuration, got {error}",
            hint="see docs/reference/configuration.md",
        ) from error
    _check(config)
    return config


def _check(config: Config) -> None:
    import re

    if not re.fullmatch(_NODE, config.site.node):
        raise ConfigError(f"site.node: expected {_NODE}, got {config.site.node!r:.80}")
    unknown = sorted(set(config.keys) - set(ROLES))
    if unknown:
        raise ConfigError(f"keys: expected roles {', '.join(ROLES)}, got {', '.join(unknown)}")
    _one_of("ledger.record", config.ledger.record, RECORD_MODES)
    _one_of("serving.nonfinite", config.serving.nonfinite, ("refuse", "allow"))
    _one_of("serving.model_control", config.serving.model_control, ("none", "explicit"))
    ranges: list[tuple[str, float, float, float]] = [
        ("ledger.flush_ms", config.ledger.flush_ms, 1, 10_000),
        ("ledger.in_flight_max", config.ledger.in_flight_max, 1, 2**20),
        ("ledger.backlog_max_bytes", config.ledger.backlog_max_bytes, 2**20, 2**50),
        ("ledger.keep_outputs_max_bytes", config.ledger.keep_outputs_max_bytes, 0, 2**20),
        ("ledger.checkpoint_ms", config.ledger.checkpoint_ms, 1, 60_000),
        ("ledger.rotate_s", config.ledger.rotate_s, 0.01, 86_400),
        ("ledger.rotate_bytes", config.ledger.rotate_bytes, 2**12, 2**40),
        ("ledger.refusals_per_s", config.ledger.refusals_per_s, 1, 10**6),
        ("serving.workers", config.serving.workers, 1, 64),
        ("serving.port", config.serving.port, 0, 65_535),
        ("serving.grpc_port", config.serving.grpc_port, -1, 65_535),
        ("serving.metrics_port", config.serving.metrics_port or 0, 0, 65_535),
        ("serving.body_max_bytes", config.serving.body_max_bytes, 2**10, 2**40),
        ("serving.batch_delay_us", config.serving.batch_delay_us, 0, 10**6),
        ("serving.memory_max_bytes", config.serving.memory_max_bytes, 0, 2**50),
        ("serving.queue_max", config.serving.queue_max, 1, 2**20),
        ("serving.baseline_skip", config.serving.baseline_skip, 0, 10**6),
        ("serving.baseline_executions", config.serving.baseline_executions, 0, 10**5),
        ("serving.recycle_resident_max_bytes", config.serving.recycle_resident_max_bytes, 0, 2**50),
        ("serving.recycle_window_s", config.serving.recycle_window_s, 1, 86_400),
        ("serving.recycle_growth_max_bytes_per_h", config.serving.recycle_growth_max_bytes_per_h, 0, 2**50),
    ]
    if 0 < config.serving.baseline_executions < BASELINE_MIN:
        ranges.append(
            ("serving.baseline_executions", config.serving.baseline_executions, BASELINE_MIN, 10**5)
        )
    for name, value, low, high in ranges:
        if not low <= value <= high:
            raise ConfigError(f"{name}: expected {low:,} to {high:,}, got {value:,}")
    _check_doors(config.doors)


def _check_doors(doors: DoorsSection) -> None:
    _one_of("doors.forwarded_header", doors.forwarded_header, ("x-forwarded-for", "forwarded"))
    parse_networks(doors.trusted_proxies, "doors.trusted_proxies")
    for name, roles in doors.certificates.items():
        verify_roles(roles, f"doors.certificates.{name:.80}")
        if name.partition(":")[0] not in ("URI", "DNS", "EMAIL", "CN"):
            raise ConfigError(
                f"doors.certificates: expected URI:, DNS:, EMAIL: or CN: names, got {name!r:.80}"
            )
    for group, role in doors.jwt_roles.items():
        verify_roles([role], f"doors.jwt_roles.{group:.80}")
    if bool(doors.certificate) != bool(doors.key):
        raise ConfigError("doors: expected certificate and key, got one of them")
    if doors.client_ca and not doors.certificate:
        raise ConfigError("doors.client_ca: expected a certificate and a key beside it, got none")
    if doors.jwks and not (doors.jwt_issuer and doors.jwt_audience):
        raise ConfigError("doors.jwks: expected jwt_issuer and jwt_audience beside it, got none")
    if (doors.jwks or doors.certificates) and not doors.authenticate:
        raise ConfigError("doors: expected authenticate = true beside jwks or certificates, got false")
    if "://" in doors.jwks and not doors.jwks.startswith("https://"):
        raise ConfigError(f"doors.jwks: expected a file or an https address, got {doors.jwks!r:.80}")
    ranges: list[tuple[str, float, float, float]] = [
        ("jwks_refresh_s", doors.jwks_refresh_s, 10, 86_400),
        ("jwt_leeway_s", doors.jwt_leeway_s, 0, 300),
        ("requests_per_s", doors.requests_per_s, 0, 10**9),
        ("bytes_per_s", doors.bytes_per_s, 0, 2**50),
        ("connections_max", doors.connections_max, 0, 2**20),
        ("connections_per_address_max", doors.connections_per_address_max, 0, 2**20),
        ("write_timeout_s", doors.write_timeout_s, 0.1, 3_600),
    ]
    for name, value, low, high in ranges:
        if not low <= value <= high:
            raise ConfigError(f"doors.{name}: expected {low:,} to {high:,}, got {value:,}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}: expected one of {', '.join(allowed)}, got {value!r:.60}")


def config_digest(raw: bytes) -> str:
    """Digest of the file's bytes, as it stands in entries."""
    return sha256(raw)


def effective(config: Config) -> dict[str, Any]:
    """Every value in force, defaults included."""
    built: dict[str, Any] = msgspec.to_builtins(config)
    return built
