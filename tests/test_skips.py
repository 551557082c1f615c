"""Where everything is installed, no test is left out in silence."""

from __future__ import annotations

import pytest
from skips import ELSEWHERE

pytest_plugins = ["pytester"]

TESTS = """
import pytest

def test_passes(): ...

@pytest.mark.skipif(True, reason="root may write anywhere")
def test_of_a_machine(): ...

def test_of_a_package():
    pytest.importorskip("no_such_package", reason="no_such_package is not installed")

@pytest.mark.xfail
def test_known_to_fail():
    assert False
"""
ASKS = 'import pytest; pytest.importorskip("no_such_package", reason="it is not installed{}")'


@pytest.fixture
def project(pytester: pytest.Pytester, request: pytest.FixtureRequest) -> pytest.Pytester:
    pytester.makeconftest((request.config.rootpath / "tests" / "skips.py").read_text())
    pytester.makepyfile(test_some=TESTS, test_whole=ASKS.format(""))
    return pytester


def test_a_test_may_skip(project: pytest.Pytester) -> None:
    done = project.runpytest_subprocess()
    assert done.ret == 0
    done.assert_outcomes(passed=1, skipped=3, xfailed=1)


def test_with_complete_only_what_the_machine_lacks_may_skip(project: pytest.Pytester) -> None:
    done = project.runpytest_subprocess("--complete", "--continue-on-collection-errors")
    assert done.ret == 1
    done.assert_outcomes(passed=1, skipped=1, xfailed=1, failed=1, errors=1)
    done.stdout.fnmatch_lines(["*must not skip: no_such_package is not installed*"])
    done.stdout.fnmatch_lines(["*must not skip: it is not installed*"])


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "two"])
def test_what_skips_for_want_of_a_package_is_listed(
    project: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    """In files that ask by one module, too, whose reports are the same."""
    project.makepyfile(asks=ASKS.format(ELSEWHERE), test_one="import asks", test_two="import asks")
    several = """
        import pytest

        @pytest.mark.parametrize("name", ["a b", "é", "[::]"])
        def test_it(name):
            import asks
    """
    project.makepyfile(test_several=several)
    listed = project.path / "new" / "lacking"
    done = project.runpytest_subprocess(*processes, f"--list-lacking={listed}")
    assert done.ret == 0
    done.assert_outcomes(passed=1, skipped=8, xfailed=1)
    # What is listed can be run, and is no more.
    (project.path / "asks.py").write_text("")
    project.makepyfile(test_one="def test_it(): ...", test_two="def test_it(): ...")
    done = project.runpytest_subprocess(*processes, "--complete", f"@{listed}")
    assert done.ret == 0
    done.assert_outcomes(passed=5)
