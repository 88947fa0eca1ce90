"""The site's policy, and the operators' log that its audit section asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pellucid.core.policy import Policy, parse_policy

if TYPE_CHECKING:
    from pellucid.app.site import Site


def site_policy(site: Site) -> Policy:
    """The site's policy."""
    return parse_policy(site.policy_bytes())


def operators_log(site: Site) -> list[str]:
    """Sinks that the policy's audit section asks for: destination with its selection of fields."""
    policy = site_policy(site)
    if not policy.audit_enabled:
        return []
    return [f"{policy.log_destination}?fields={','.join(policy.audit_fields)}"]
