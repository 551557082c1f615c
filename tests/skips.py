"""What may skip: with `--complete` a test that skips fails, unless its reason is one of these."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest

# What no package brings: reasons that `--complete` allows. Each is the beginning of a reason.
LACKING = (
    # Files that lie beside the repository.
    r"\S+ is not in \.\./shared/",
    # The operating system, or who runs the tests.
    r"Linux has a full device",
    r"root may write anywhere",
    r"needs fork",
    r"needs a pseudo-terminal",
    r"threads have priorities of their own on Linux",
    r"memory is read from Linux's /proc",
    # A browser.
    r"there is no Chromium on this machine",
    r"curl is not installed",
    # A cross compiler, an emulator, and ONNX Runtime for the other processor.
    r"64-bit Arm: ",
)

# How the reasons of `needs.needs` end.
ELSEWHERE = "; `make test-all` has it"

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--complete",
        action="store_true",
        help="a test that skips fails, unless this machine lacks what no package brings",
    )
    parser.addoption(
        "--list-lacking",
        metavar="FILE",
        type=Path,
        help="write the tests, and files of them, that skip for want of a package, one a line",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Not in a process that tests are shared out to: this one hears of theirs.
    if (path := config.getoption("--list-lacking")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Lacking(path))


class _Lacking:
    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._names: list[str] = []

    def _report(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and _reason(report).endswith(ELSEWHERE):
            self._names.append(report.nodeid)

    pytest_runtest_logreport = pytest_collectreport = _report

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("".join(f"{name}\n" for name in sorted(self._names)), "utf-8")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why it skips."""
    said: Any = report.longrepr
    return str(said[2] if isinstance(said, tuple) else said).removeprefix("Skipped: ")


def _judged(report: Report, config: pytest.Config) -> Report:
    if config.getoption("--complete") and report.skipped and not hasattr(report, "wasxfail"):
        reason = _reason(report)
        if not any(re.match(allowed, reason) for allowed in LACKING):
            report.outcome = "failed"
            report.longrepr = f"{report.nodeid}: with --complete this must not skip: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    return _judged((yield), item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, Any]:
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        # The file that was left out, not the module in which it asked for a package: of reports
        # that say the same pytest-xdist hands on one.
        report.longrepr = (str(collector.path), None, report.longrepr[2])
    return _judged(report, collector.config)
