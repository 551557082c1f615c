"""What all tests share: the user's cache folder is left alone, and no test is timed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

import omnidraft  # noqa: F401  before any test imports ONNX Runtime, whose telemetry it turns off

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
