"""Packages, plugged together: find, verify, judge, admit."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pellucid.app.audit import site_policy as site_policy
from pellucid.app.clock import SystemClock
from pellucid.app.memory import make_ceiling
from pellucid.app.packages import FolderOpener, history_for
from pellucid.core.finding import Verdict
from pellucid.core.policy import DeviceFacts, History, NodeFacts, Policy, evaluate
from pellucid.core.trust import TrustedPackage, TrustRoot, verify_package
from pellucid.errors import MissingExtraError, UnknownSchemeError, UsageError
from pellucid.guardian.open import open_package

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.guardian.admit import Admitted, Guardian
    from pellucid.ports import EventRecorder

LOG_SCHEMES: Final = ("file", "stdout")  # where the operators' log can be written
_VENDORS: Final = ("AMD", "Intel", "NVIDIA", "ARM", "Apple")


# -- verify and judge -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checked:
    """A verified package, and the policy's verdict when one was asked for."""

    package: TrustedPackage
    verdict: Verdict | None


def verify(
    site: Site | None, reference: Path | str, *, trust: TrustRoot | None = None, policy: Policy | None = None
) -> Checked:
    """Verify a package, and judge it where there is a policy; nothing is loaded or recorded.

    Args:
        site: Gives trust, policy and history unless they are given.
        reference: Archive or unpacked folder; with a site also ``name:version`` or a package digest.

    Raises:
        NotFoundError: Nothing answers to it.
        UsageError: Neither a site nor a trust.
        VerificationError: Signature, digests or shape do not hold.
    """
    if trust is None:
        if site is None:
            raise UsageError("trust: expected --trust DIR or a site, got neither")
        trust = site.trust()
    path = Path(reference)
    named = site is not None and not path.exists()
    files = opener(site).open(str(reference)) if site is not None and named else open_package(path)
    package = verify_package(files, trust)
    if policy is None and site is not None:
        policy = site_policy(site)
    if policy is None:
        return Checked(package, None)
    history = history_for(site, package.name) if site is not None else History()
    return Checked(package, evaluate(policy, package, node_here(package.manifest.backend), history))


def node_here(backend: str) -> NodeFacts:
    """What this machine says of itself; without the backend's library the environment is unknown."""
    from pellucid.app.processes import backend_for

    try:
        return node_facts(backend_for(backend).environment())
    except (MissingExtraError, UnknownSchemeError):
        return NodeFacts(None, now_ns=SystemClock().now_ns())


def node_facts(environment: dict[str, Any], engines: int = 0) -> NodeFacts:
    """Facts of this node, around the environment that a backend reports."""
    device = environment.get("device")
    devices = (_device_facts(device, engines),) if isinstance(device, dict) else ()
    return NodeFacts(environment, devices, LOG_SCHEMES, memory_isolation(), SystemClock().now_ns())


def _device_facts(device: dict[str, Any], engines: int) -> DeviceFacts:
    name = str(device.get("name", ""))
    vendor = next((word for word in _VENDORS if word.casefold() in name.casefold()), "")
    return DeviceFacts(str(device.get("kind", "")), vendor, name, engines=engines)


def memory_isolation(root: Path = Path("/sys/class/iommu")) -> tuple[str, ...]:
    """Isolation units the kernel has switched on."""
    try:
        units = os.listdir(root)
    except OSError:
        return ()
    words = ["smmu_enabled"] if any(unit.startswith(("smmu", "arm-smmu")) for unit in units) else []
    return (*words, "iommu_enabled") if units else ()


# -- admit ----------------------------------------------------------------------------------------


def admit(site: Site, path: Path, recorder: EventRecorder) -> Admitted:
    """Admit one package: verified, judged, golden inputs run, recorded.

    Raises:
        VerificationError, PolicyDeniedError: Refused, and recorded as refused.
    """
    return guardian(site, recorder).admit(open_package(path))


def guardian(site: Site, recorder: EventRecorder) -> Guardian:
    """The site's guardian; keep one per serving process."""
    from pellucid.app.processes import backend_for
    from pellucid.guardian.admit import Guardian

    return Guardian(
        policy=site_policy(site),
        trust=site.trust(),
        backend_for=backend_for,
        recorder=recorder,
        history=lambda name: history_for(site, name),
        node=node_facts,
        serving=serving_terms(site),
        room=make_ceiling(site.config.serving.memory_max_bytes),
    )


def serving_terms(site: Site) -> dict[str, int]:
    """Settings that change how long a call takes."""
    serving = site.config.serving
    return {name: getattr(serving, name) for name in ("batch_delay_us", "queue_max", "workers")}


def opener(site: Site) -> FolderOpener:
    """Opens packages of the site's folder."""
    return FolderOpener(site.packages_folder)


def sign(site: Site, folder: Path) -> Path:
    """Sign, pack and record a package folder; gives the archive. More of it: ``app.sign``."""
    from pellucid.app.sign import sign_folder

    return sign_folder(site, folder).archive
