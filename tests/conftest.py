"""What all tests share: the user's cache folder is left alone, and no test is timed."""

from __future__ import annotations

# Before any other: it says how many cores there are.
from workers import ALL_CORES, OWN_CORES, keep_to

# isort: split
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from tiny import write_drafter, write_target

# Before any test imports ONNX Runtime, whose telemetry it turns off.
from omnidraft import LoadedModel, load_model

pytest_plugins = ["skips"]

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

_USERS = os.environ.get("OMNIDRAFT_CACHE")


@pytest.fixture(scope="module")
def all_cores() -> Iterator[None]:
    """All cores of this machine, for tests of what runs on several at once."""
    keep_to(ALL_CORES)
    yield
    keep_to(OWN_CORES)


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
