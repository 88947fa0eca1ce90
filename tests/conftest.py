"""What every test shares, and the rule that nothing is left out in silence.

A test that cannot run here skips with ``NOT RUN name: reason``. The summary lists them; with
``--not-run-allowed FILE`` (the gate) every one that the file does not name fails the run, and so
does any other skip.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before anything can import onnxruntime

try:
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "pellucid",
        deadline=None,  # the machine is shared: a slow example is not a wrong one
        max_examples=int(os.environ.get("PELLUCID_FUZZ_EXAMPLES", "60")),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        print_blob=True,
        database=None,
    )
    settings.load_profile("pellucid")
except ModuleNotFoundError:
    pass


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--not-run-allowed", default=None, help="file of judges that may be left out")


def _not_run(terminalreporter) -> list[str]:
    reasons = []
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons.append(reason.removeprefix("Skipped: "))
    return sorted(set(reasons))


def _allowed(path: str) -> set[str]:
    lines = Path(path).read_text().splitlines()
    return {line.partition("#")[0].strip() for line in lines} - {""}


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    path = session.config.getoption("--not-run-allowed")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if path is None or reporter is None:
        return
    allowed = _allowed(path)
    for reason in _not_run(reporter):
        name = reason.removeprefix("NOT RUN ").partition(":")[0] if reason.startswith("NOT RUN ") else ""
        if name not in allowed and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, exitstatus, config) -> None:
    reasons = _not_run(terminalreporter)
    path = config.getoption("--not-run-allowed")
    allowed = _allowed(path) if path else None
    for reason in reasons:
        line = reason if reason.startswith("NOT RUN ") else f"NOT RUN unnamed: {reason}"
        name = line.removeprefix("NOT RUN ").partition(":")[0]
        refused = allowed is not None and name not in allowed
        terminalreporter.write_line(line + (f"  <- not in {path}: the run fails" if refused else ""))


@pytest.fixture
def repository() -> Path:
    """Root of the checkout."""
    return Path(__file__).resolve().parents[1]
