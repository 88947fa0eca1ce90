"""What a serving process can say of itself: its image, its packages, its policy, its service account.

The mounted token of a service account is read for its claims and goes nowhere: nobody here asks
whether it holds, since who mounts files into a pod can also change this program.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pellucid import __version__
from pellucid.core.digest import sha256
from pellucid.errors import PellucidError

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.core.trust import TrustedPackage

SBOM: Final = "PELLUCID_SBOM"  # file of the bill of materials that the image carries
SBOM_MAX: Final = 64 * 2**20
TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
TOKEN_MAX: Final = 16_384


def about(site: Site, said: Mapping[str, str] = os.environ, token: Path = TOKEN) -> dict[str, Any]:
    """``who``, ``what`` and ``allowed`` of this process, as it stands now."""
    from pellucid.build.environment import find_container, find_image

    container = find_container(said)
    image, no_image = find_image(said, container)
    if image is None and container is None:
        no_image = "this process runs in no container"
    sbom, no_sbom = _sbom(said.get(SBOM, ""))
    account, no_account = service_account(token)
    return {
        "who": {
            "node": site.config.site.node, "name": "pellucid", "version": __version__,
            **_said("image", image, no_image), **_said("sbom", sbom, no_sbom),
            **_said("container", container, "no sign of one"),
        },
        "what": {"packages": _packages()},
        "allowed": {
            **_said("policy", *_policy(site)), "config": site.config_digest,
            **_said("service_account", account, no_account),
        },
    }  # fmt: skip


def _said(name: str, value: Any, reason: str) -> dict[str, Any]:
    return {name: value} if value is not None else {name: None, f"{name}_reason": reason}


@cache
def _sbom(path: str) -> tuple[str | None, str]:
    """Digest of the image's bill of materials; an image does not change while it runs."""
    if not path:
        return None, f"{SBOM} does not name a file"
    try:
        with open(path, "rb") as file:
            raw = file.read(SBOM_MAX + 1)
    except OSError as error:
        return None, f"{SBOM}: expected a readable file, got {error.strerror}"
    if len(raw) > SBOM_MAX:
        return None, f"{SBOM}: expected at most {SBOM_MAX:,} bytes, got more"
    return sha256(raw), ""


@cache
def _packages() -> list[dict[str, str]]:
    """Distributions whose modules this process has loaded."""
    from pellucid.build.loaded import loaded_packages

    return loaded_packages()


def _policy(site: Site) -> tuple[str | None, str]:
    try:
        return sha256(site.policy_bytes()), ""
    except PellucidError as error:
        return None, error.message


def service_account(path: Path) -> tuple[dict[str, Any] | None, str]:
    """Whom Kubernetes takes this pod for, by the claims of its mounted token; never the token."""
    try:
        with path.open("rb") as file:
            raw = file.read(TOKEN_MAX + 1)
    except OSError:
        return None, "no token of a service account is mounted"
    try:
        _, claims, _ = raw.decode().strip().split(".")
        said = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        scope = said.get("kubernetes.io", {})
        account = {
            "name": _text(scope.get("serviceaccount", {}).get("name")),
            "namespace": _text(scope.get("namespace")),
            "subject": _text(said.get("sub")),
            "issuer": _text(said.get("iss")),
            "audiences": [_text(word) for word in _words(said.get("aud"))][:16],
            "pod": _text(scope.get("pod", {}).get("name")),
            "expires": said["exp"] if type(said.get("exp")) is int else None,
        }
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None, "the mounted token is no JWT of a service account"
    return account, ""


def _words(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _text(value: Any) -> str | None:
    return value[:256] if isinstance(value, str) else None


def about_package(package: TrustedPackage) -> dict[str, Any]:
    """How a package was optimised and who approved it."""
    metadata = package.metadata
    return {
        "optimisations": {
            "backend": package.manifest.backend,
            "target": package.recipe.get("target"),
            "precision": package.precision,
            "computed_precision": package.computed_precision,
            "fused_layers": metadata.get("fused_layers"),
            "threads": package.recipe.get("threads"),
        },
        "signer": package.signer,
        "approvals": [
            {
                "kind": given.kind, "role": given.role, "key": given.key, "approved": given.approved,
                "expires": given.expires, "reason": given.reason,
            }
            for given in package.approvals
        ],
    }  # fmt: skip
