"""What all tests share: the user's cache folder is left alone, no test is timed, and what skips."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from tiny import write_drafter, write_target

# Before any test imports ONNX Runtime, whose telemetry it turns off.
from omnidraft import LoadedModel, load_model

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

_USERS = os.environ.get("OMNIDRAFT_CACHE")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder that goes with the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIDRAFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def users_cache(own_cache: None) -> Iterator[None]:
    """The user's, for models that take long to fetch."""
    with pytest.MonkeyPatch.context() as patch:
        if _USERS is None:
            patch.delenv("OMNIDRAFT_CACHE")
        else:
            patch.setenv("OMNIDRAFT_CACHE", _USERS)
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, LoadedModel]:
    """A tiny target, and a drafter of another vocabulary."""
    root = tmp_path_factory.mktemp("models")
    target = load_model(str(write_target(root / "target")), threads=1)
    return target, load_model(str(write_drafter(root / "drafter")), threads=1)


# --- what may skip -----------------------------------------------------------------------------

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

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--complete",
        action="store_true",
        help="a test that skips fails, unless this machine lacks what no package brings",
    )


def _judged(report: Report, config: pytest.Config) -> Report:
    if config.getoption("--complete") and report.skipped and not hasattr(report, "wasxfail"):
        reason: Any = report.longrepr
        reason = str(reason[2] if isinstance(reason, tuple) else reason).removeprefix("Skipped: ")
        if not any(re.match(allowed, reason) for allowed in LACKING):
            report.outcome = "failed"
            report.longrepr = f"With --complete this must not skip: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    return _judged((yield), item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, Any]:
    return _judged((yield), collector.config)
