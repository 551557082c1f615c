"""How many threads suit a process, on made-up machines."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from tiny import write_drafter, write_target

from omnidraft.runtime import cores
from omnidraft.runtime.cores import Cores, apple_cores, default_threads, own_cores, read_cores
from omnidraft.runtime.errors import OptionError
from omnidraft.runtime.models import load_model

CPU = "sys/devices/system/cpu"
V2 = "30 1 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 1 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 1 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def write(root: Path, entries: dict[str, object]) -> Path:
    for name, content in entries.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def siblings(*groups: str, entry: str = "core_cpus_list") -> dict[str, object]:
    """Logical cores of one physical core each: "0,8" or "0-1"."""
    return {
        f"{CPU}/cpu{cpu}/topology/{entry}": group for group in groups for cpu in _numbers(group)
    }


def _numbers(group: str) -> list[int]:
    first, *others = map(int, group.replace("-", ",").split(","))
    return [first, *others]


def each(entry: str, values: Collection[int]) -> dict[str, object]:
    return {f"{CPU}/cpu{cpu}/{entry}": value for cpu, value in enumerate(values)}


def v2(path: str, mounts: str = V2, **limits: str) -> dict[str, object]:
    """A process in the group ``path``; limits by the group's path, with __ for a slash."""
    files = {
        f"sys/fs/cgroup/{name.strip('_').replace('__', '/')}/cpu.max": limit
        for name, limit in limits.items()
    }
    return {"proc/self/cgroup": f"0::{path}", "proc/self/mountinfo": mounts, **files}


def v1(path: str, mounts: str = V1, **limits: int) -> dict[str, object]:
    """The same of version 1, with limits in microseconds of 100,000."""
    groups = f"9:memory:/elsewhere\n4:cpu,cpuacct:{path}\n0::/unified"
    files: dict[str, object] = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts}
    for name, limit in limits.items():
        folder = f"sys/fs/cgroup/cpu,cpuacct/{name.strip('_').replace('__', '/')}"
        files |= {f"{folder}/cpu.cfs_quota_us": limit, f"{folder}/cpu.cfs_period_us": 100000}
    return files


@pytest.mark.parametrize(
    ("entries", "allowed", "big"),
    [
        pytest.param({}, range(4), 4, id="nothing readable"),
        pytest.param(siblings("0-1", "2-3"), range(4), 2, id="2 cores, 4 hyper-threads"),
        pytest.param(
            siblings("0-1", "2-3", entry="thread_siblings_list"), range(4), 2, id="older kernel"
        ),
        pytest.param(
            siblings(*(f"{cpu},{cpu + 8}" for cpu in range(8))), range(16), 8, id="8+8 threads"
        ),
        pytest.param(siblings("0,8", "1,9"), {1, 9}, 1, id="both threads of one core"),
        pytest.param(siblings("0,8", "1,9"), {8, 9}, 2, id="second threads of two cores"),
        pytest.param(siblings("0-1", "2-3"), {3}, 1, id="bound to one"),
        pytest.param(siblings("5-6", "5-6"), {0, 1}, 2, id="lists of other cores"),
        pytest.param(
            {f"{CPU}/cpu0/topology/core_cpus_list": "zero-one"}, {0, 1}, 2, id="no lists at all"
        ),
        pytest.param(
            each("cpu_capacity", [404] * 4 + [1024] * 4), range(8), 4, id="4 big, 4 little"
        ),
        pytest.param(
            each("cpu_capacity", [250] * 4 + [800] * 3 + [1024]), range(8), 4, id="three kinds"
        ),
        pytest.param(
            each("cpu_capacity", [404] * 4 + [1024] * 4), range(4), 4, id="bound to little cores"
        ),
        pytest.param(each("cpu_capacity", [1024] * 8), range(8), 8, id="of one kind"),
        pytest.param(
            each("cpu_capacity", [1024] * 6)
            | each("cpufreq/cpuinfo_max_freq", [1416000] * 4 + [1800000] * 2),
            range(6),
            2,
            id="capacities that tell nothing beside clocks",
        ),
        pytest.param(
            each("cpufreq/cpuinfo_max_freq", [5000000, 4900000, 4700000]),
            range(3),
            3,
            id="cores that are a little better",
        ),
        pytest.param(
            each("cpu_capacity", [404] * 2 + [1024]), range(4), 4, id="one capacity is missing"
        ),
        pytest.param(
            siblings("0-1", "2-3") | {"sys/devices/cpu_core/cpus": "0-3"}, range(8), 2, id="hybrid"
        ),
        pytest.param(
            {"sys/devices/cpu_core/cpus": "0-3"}, {4, 5, 6}, 3, id="hybrid, bound to the small"
        ),
    ],
)
def test_big_physical_cores(
    tmp_path: Path, entries: dict[str, object], allowed: Collection[int], big: int
) -> None:
    found = read_cores(write(tmp_path, entries), allowed)
    assert found == Cores(len(allowed), big) and found.threads == big


@pytest.mark.parametrize(
    ("entries", "quota"),
    [
        pytest.param(v2("/", _="max 100000"), None, id="v2, none"),
        pytest.param(v2("/", _="150000 100000"), 1.5, id="v2, a container's own top"),
        pytest.param(v2("/a/b", a="150000 100000", a__b="max 100000"), 1.5, id="v2, around it"),
        pytest.param(v2("/a/b", a="300000 100000", a__b="25000 10000"), 2.5, id="v2, tightest"),
        pytest.param(v2("/a", a="100000 100000", a__b="50000 100000"), 1.0, id="v2, not below"),
        pytest.param(v2("/../x", _="200000 100000"), 2.0, id="v2, outside of its namespace"),
        pytest.param(
            v2("/pod/me", mounts=V2.replace(" / ", " /pod ", 1), _="200000 100000", me="max 1000"),
            2.0,
            id="v2, a part of the tree",
        ),
        pytest.param(
            v2("/pod", mounts=V2.replace(" / ", " /other ", 1), _="200000 100000"),
            2.0,
            id="v2, another part of the tree",
        ),
        pytest.param(
            v2("/", mounts="29 1 0:2 / /odd\\040place rw - cgroup2 none rw\n")
            | {"odd place/cpu.max": "100000 50000"},
            2.0,
            id="v2, a place with a blank",
        ),
        pytest.param(v2("/", _="150000"), None, id="v2, half a line"),
        pytest.param(v2("/", _="150000 0"), None, id="v2, no period"),
        pytest.param(v1("/", _=-1), None, id="v1, none"),
        pytest.param(v1("/", _=150000), 1.5, id="v1"),
        pytest.param(v1("/a/b", _=-1, a=120000, a__b=300000), 1.2, id="v1, tightest"),
        pytest.param(
            v1("/docker/1", mounts=V1.replace(" / ", " /docker/1 "), _=350000), 3.5, id="v1, docker"
        ),
        pytest.param(
            v1("/a", mounts=V1 + V2.replace("cgroup ", "cgroup/unified "), _=-1, a=200000)
            | {"sys/fs/cgroup/unified/cpu.max": "max 100000"},
            2.0,
            id="both versions",
        ),
        pytest.param({"proc/self/cgroup": "x", "proc/self/mountinfo": "y\n - \n"}, None, id="junk"),
        pytest.param({"proc/self/cgroup": "0::/"}, None, id="no mounts"),
    ],
)
def test_the_tightest_quota(
    tmp_path: Path, entries: dict[str, object], quota: float | None
) -> None:
    assert read_cores(write(tmp_path, entries), range(4)).quota == quota


@pytest.mark.parametrize(
    ("found", "threads", "usable"),
    [
        (Cores(1, 1), 1, 1),
        (Cores(16, 8), 8, 16),
        (Cores(256, 128), 16, 256),
        (Cores(16, 8, 0.2), 1, 1),
        (Cores(16, 8, 1.5), 1, 2),
        (Cores(16, 8, 2.0), 2, 2),
        (Cores(16, 8, 12.0), 8, 12),
        (Cores(4, 2, 99.0), 2, 4),
        (Cores(0, 0), 1, 0),
    ],
)
def test_threads_of_cores(found: Cores, threads: int, usable: int) -> None:
    assert (found.threads, found.usable) == (threads, usable)


@pytest.mark.parametrize(
    ("known", "big"),
    [
        ({"hw.perflevel0.physicalcpu": 4, "hw.physicalcpu": 8}, 4),
        ({"hw.physicalcpu": 6}, 6),
        ({}, 12),
    ],
    ids=["two kinds", "one kind", "nothing"],
)
def test_macos(known: dict[str, int], big: int) -> None:
    assert apple_cores(12, known.get) == Cores(12, big)


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= default_threads() <= max(1, own_cores().logical)
    # Where processes are not bound to cores.
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert own_cores() == Cores(6, 6)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert own_cores() == Cores(1, 1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("models")
    return str(write_target(root / "target")), str(write_drafter(root / "drafter"))


@pytest.mark.parametrize(
    ("asked", "taken", "said"),
    [
        (None, 3, None),
        (1, 1, None),
        (4, 4, None),
        (5, 5, "threads: 5 are more than this process may keep busy at once, which is 4"),
    ],
)
def test_threads_of_a_model(
    folders: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: int | None,
    taken: int,
    said: str | None,
) -> None:
    monkeypatch.setenv("OMNIDRAFT_CACHE", str(tmp_path))
    monkeypatch.setattr(cores, "own_cores", lambda: Cores(8, 3, 4.0))
    monkeypatch.setattr("omnidraft.runtime.models.load.own_cores", cores.own_cores)
    options: dict[str, Any] = {} if asked is None else {"threads": asked}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        target = load_model(folders[0], **options)
        drafter = load_model(folders[1], drafts=True, **options)
    assert target.threads == target.model.threads == drafter.threads == taken  # type: ignore[attr-defined]
    texts = [str(each.message) for each in caught]
    assert texts == [] if said is None else len(texts) == 1 and said in texts[0]
    with pytest.raises(OptionError, match="at most 16 here, not 17"):
        load_model(folders[0], threads=17)
