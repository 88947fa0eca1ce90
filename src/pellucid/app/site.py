"""A site: one folder with configuration, policy, keys, trust, packages and ledger."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from pellucid import schemes
from pellucid.config import DEFAULT_CONFIG, ROLES, Config, config_digest, parse_config
from pellucid.core.digest import parse_digest, sha256
from pellucid.errors import ConfigError, NotFoundError, UsageError

if TYPE_CHECKING:
    from pellucid.core.trust import TrustRoot
    from pellucid.ports import Signer

FILE: Final = "pellucid.toml"
POLICIES: Final = "policies"  # every policy that ever served, by its digest
CONFIGS: Final = "configs"  # every configuration that ever served, by its digest


class Site(msgspec.Struct, frozen=True):
    """An opened site. Paths in the configuration are relative to ``root``."""

    root: Path
    config: Config
    raw: bytes

    @property
    def config_digest(self) -> str:
        return config_digest(self.raw)

    def path(self, text: str) -> Path:
        """Path of the configuration, made absolute."""
        return self.root / text

    @property
    def ledger_folder(self) -> Path:
        return self.path(self.config.ledger.folder)

    @property
    def trust_folder(self) -> Path:
        return self.path(self.config.trust)

    @property
    def packages_folder(self) -> Path:
        return self.path(self.config.packages)

    def policy_bytes(self) -> bytes:
        """The policy file as it stands.

        Raises:
            NotFoundError: There is none.
        """
        return read_file(self.path(self.config.policy), "policy")

    def keep_texts(self) -> None:
        """Keep today's policy and configuration by their digests: entries name them for years.

        Raises:
            NotFoundError: There is no policy.
        """
        for folder, raw in ((POLICIES, self.policy_bytes()), (CONFIGS, self.raw)):
            path = self.path(folder) / parse_digest(sha256(raw)).hex()
            if not path.is_file():
                path.parent.mkdir(exist_ok=True)
                draft = path.with_suffix(".new")
                draft.write_bytes(raw)
                draft.replace(path)

    def signer(self, role: str) -> Signer:
        """The key of a role.

        Raises:
            ConfigError: The configuration names no key for it.
        """
        uri = self.config.keys.get(role)
        if uri is None:
            raise ConfigError(
                f"keys.{role}: expected a key URI, got none", hint=f"add it to {FILE}, section [keys]"
            )
        scheme, _, rest = uri.partition(":")
        if scheme == "file":
            uri = f"file:{self.path(rest)}"
        signer: Signer = schemes.from_uri("key", uri)
        return signer

    def trust(self) -> TrustRoot:
        """Keys this site believes, from its trust folder."""
        return read_trust(self.trust_folder)


def read_file(path: Path, subject: str) -> bytes:
    """Bytes of a file the user named.

    Raises:
        NotFoundError: It is not there, or no plain file.
        LimitError: It is larger than any that is used.
    """
    from pellucid.build.files import read_plain

    return read_plain(path, subject)


def read_trust(folder: Path) -> TrustRoot:
    """Trust of a folder: ``log.vkey`` and ``<role>.pem`` (several as ``<role>.<name>.pem``).

    Raises:
        NotFoundError: No such folder.
    """
    from pellucid.core.trust import TrustRoot

    if not folder.is_dir():
        raise NotFoundError(f"trust: expected a folder at {folder}, got none")
    keys: dict[str, list[bytes]] = {}
    for file in sorted(folder.glob("*.pem")):
        keys.setdefault(file.name.split(".", 1)[0], []).append(file.read_bytes())
    vkey = folder / "log.vkey"
    log_vkey = vkey.read_text().strip() if vkey.is_file() else ""
    return TrustRoot(log_vkey=log_vkey, keys={role: tuple(pems) for role, pems in keys.items()})


def open_site(path: Path | None) -> Site:
    """Open a site: the folder given, else ``$PELLUCID_SITE``, else the nearest parent with one.

    Raises:
        NotFoundError: No site there.
        ConfigError: Its configuration does not hold.
    """
    root = _find(path)
    raw = read_file(root / FILE, "site")
    return Site(root, parse_config(raw), raw)


def _find(path: Path | None) -> Path:
    if path is None and os.environ.get("PELLUCID_SITE"):
        path = Path(os.environ["PELLUCID_SITE"])
    if path is not None:
        if not (path / FILE).is_file():
            raise NotFoundError(
                f"site: expected {FILE} in {path}, got none", hint=f"make one with: pellucid init {path}"
            )
        return path.resolve()
    here = Path.cwd().resolve()
    for folder in (here, *here.parents):
        if (folder / FILE).is_file():
            return folder
    raise NotFoundError(
        f"site: expected {FILE} here or in a parent folder, got none",
        hint="make one with: pellucid init DIR, or name one with --site",
    )


def default_node() -> str:
    """This machine's name in the form that call keys allow."""
    import re

    name = re.sub(r"[^a-z0-9.-]+", "-", platform.node().lower()).strip(".-")
    return name[:63] or "node1"


def create_site(root: Path, *, node: str | None = None, origin: str | None = None) -> Site:
    """Make a new site: keys, trust, policy, configuration, folders. Nothing existing is touched.

    Raises:
        UsageError: The folder holds a site or other files already.
    """
    from pellucid.core.note import format_vkey, verify_name
    from pellucid.core.policy import DEFAULT_POLICY
    from pellucid.core.signature import raw_ed25519

    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UsageError(
            f"site: expected a new or empty folder at {root}, got one in use", hint="choose another folder"
        )
    node = node or default_node()
    origin = verify_name(origin or f"{node}/pellucid", "origin")  # before anything is written
    raw = DEFAULT_CONFIG.format(node=node, origin=origin).encode()
    config = parse_config(raw)
    for name in ("keys", "trust", "packages", "recipes", config.ledger.folder):
        (root / name).mkdir(parents=True, mode=0o700 if name == "keys" else 0o755)
    generate = schemes.load("key", "file").generate
    for role in ROLES:
        key = generate(root / "keys" / f"{role}.key", "ed25519" if role == "log" else "ecdsa-p256")
        if role == "log":
            vkey = format_vkey(origin, 1, raw_ed25519(key.public_pem()))
            (root / "trust" / "log.vkey").write_text(vkey + "\n")
            (root / "trust" / "policy.txt").write_text(f"log {vkey}\nquorum none\n")
        else:
            (root / "trust" / f"{role}.pem").write_bytes(key.public_pem())
    (root / config.policy).write_text(DEFAULT_POLICY)
    (root / FILE).write_bytes(raw)
    return Site(root.resolve(), config, raw)
