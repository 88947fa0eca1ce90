"""``pellucid verify``: does a package or an evidence bundle hold? Loads and records nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pellucid.cli.output import emit, json_option, site_option, table

if TYPE_CHECKING:
    from rich.console import Console

    from pellucid.app.load import Checked
    from pellucid.app.site import Site


@click.command("verify")
@click.argument("package", metavar="PACKAGE")
@click.option("--trust", "trust_path", type=click.Path(path_type=Path, file_okay=False), default=None,
              help="Folder with the keys to believe (default: the site's).")  # fmt: skip
@click.option("--policy", "policy_path", type=click.Path(path_type=Path, dir_okay=False), default=None,
              help="Policy file (default: the site's; without a site, none).")  # fmt: skip
@site_option
@json_option
def command(
    package: str, trust_path: Path | None, policy_path: Path | None, site_path: Path | None, as_json: bool
) -> int:
    """Verify PACKAGE (archive, folder, NAME:VERSION or a digest) or an evidence bundle (.zip).

    A package: shape, signature, digests, attestations, and what the policy would say. A bundle: all
    that verify.py checks, and a second opinion by other code.

    Exit 0 it holds, 3 it does not hold, 4 the policy refuses it.
    """
    if Path(package).suffix == ".zip":
        return _verify_bundle(Path(package), trust_path, site_path, as_json=as_json)
    from pellucid.app.load import verify
    from pellucid.app.site import read_file, read_trust
    from pellucid.core.policy import parse_policy

    site = _site(site_path, required=trust_path is None)
    trust = read_trust(trust_path) if trust_path is not None else None
    policy = parse_policy(read_file(policy_path, "policy")) if policy_path is not None else None
    checked = verify(site, package, trust=trust, policy=policy)
    allowed = checked.verdict is None or checked.verdict.allowed
    emit(_value(checked), lambda console: _render(console, checked), as_json=as_json)
    return 0 if allowed else 4


def _verify_bundle(path: Path, trust_path: Path | None, site_path: Path | None, *, as_json: bool) -> int:
    from pellucid.app.evidence import check_with
    from pellucid.app.site import open_site, read_file

    folder = trust_path if trust_path is not None else open_site(site_path).trust_folder
    checked = check_with(read_file(path, "bundle"), folder)
    value = {"bundle": str(path), "holds": checked.holds, "notes": checked.notes, "facts": checked.facts}

    def render(console: Console) -> None:
        rows = [*(("holds", text) for text in checked.holds), *(("note", text) for text in checked.notes)]
        console.print(table("", ("", "what"), rows))
        console.print("Holds, by verify.py and by a second opinion. Integrity is shown, truth is not.")

    emit(value, render, as_json=as_json)
    return 0


def _site(path: Path | None, *, required: bool) -> Site | None:
    from pellucid.app.site import open_site
    from pellucid.errors import NotFoundError

    if path is not None:
        return open_site(path)
    try:
        return open_site(None)
    except NotFoundError as error:
        if required:
            hint = "name the folder with the keys you believe: --trust DIR (or a site: --site DIR)"
            raise NotFoundError(error.message, hint=hint) from None
        return None


def _value(checked: Checked) -> dict[str, Any]:
    package, verdict = checked.package, checked.verdict
    findings = verdict.findings if verdict else package.findings
    return {
        "package": package.digest, "folder": package.folder, "name": package.name,
        "version": package.version, "signer": package.signer, "engine": package.engine_digest,
        "policy": verdict.policy_digest if verdict else None,
        "allowed": verdict.allowed if verdict else None,
        "findings": [finding.record() for finding in findings],
    }  # fmt: skip


def _render(console: Console, checked: Checked) -> None:
    from rich.text import Text

    package, verdict = checked.package, checked.verdict
    console.print(Text(f"{package.folder} holds: every byte is signed by key {package.signer[:16]}", "green"))
    console.print(f"package {package.digest}", markup=False)
    findings = verdict.findings if verdict else package.findings
    if findings:
        rows = [
            (_mark(f.passed, f.refuses), f.rule.removeprefix("security."), f.expected, f.got)
            for f in findings
        ]
        console.print(table("", ("", "rule", "expected", "got"), rows, whole=("", "rule")))
    if verdict is None:
        console.print("No policy was given, so nothing was judged.")
    elif verdict.allowed:
        console.print(Text(f"Policy {verdict.policy!r} allows it.", "green"))
        console.print("A load judges one rule more: the golden inputs must give their recorded bits.")
    else:
        text = f"Policy {verdict.policy!r} refuses it: {len(verdict.failed)} of {len(findings)} rules failed."
        console.print(Text(text, "bold red"))


def _mark(passed: bool, refuses: bool) -> Any:
    from rich.text import Text

    if passed:
        return Text("ok", "green")
    return Text("refused", "bold red") if refuses else Text("note", "yellow")
