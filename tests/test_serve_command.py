"""``omnidraft serve`` as a person runs it: its beginning, its end, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tiny import write_drafter, write_target


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("serve")
    return {
        "cache": str(root / "cache"),
        "target": str(write_target(root / "target", context=4096)),
        "other": str(write_target(root / "other", seed=3)),
        "drafter": str(write_drafter(root / "drafter", seed=1)),
    }


def command(world: dict[str, str], *options: str) -> tuple[list[str], dict[str, str]]:
    places = ["--drafter", world["drafter"], "--threads", "1"]
    environment = {
        **os.environ,
        "OMNIDRAFT_CACHE": world["cache"],
        "OMNIDRAFT_DATA": world["cache"],
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("OMNIDRAFT_API_KEY", None)
    return [sys.executable, "-m", "omnidraft", "serve", *places, *options], environment


@contextmanager
def running(
    world: dict[str, str], *options: str, key: str | None = None
) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The process, its address, and what it has said so far."""
    words, environment = command(world, "--port", "0", *options)
    if key is not None:
        environment["OMNIDRAFT_API_KEY"] = key
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        said: list[str] = []
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"at (http://\S+)/v1", line):
                yield process, found[1], said
                break
        else:
            pytest.fail("".join(said))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end(world: dict[str, str], number: signal.Signals) -> None:
    with running(world, "--target", world["target"]) as (process, address, _):
        assert httpx.get(address + "/health").status_code == 200
        asked = {"model": "target", "messages": [{"role": "user", "content": "wombat"}]}
        with httpx.stream(
            "POST",
            address + "/v1/chat/completions",
            json={**asked, "max_tokens": 4000, "stream": True, "temperature": 0},
            timeout=300,
        ) as answer:
            lines = answer.iter_lines()
            while "content" not in next(lines):
                pass
            process.send_signal(number)
            rest = list(lines)  # broken off, not left hanging
        assert not any('"finish_reason":"length"' in line for line in rest)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "stopped" in err and "Traceback" not in err
        assert "wombat" not in err
        assert "POST /v1/chat/completions 200" in err


def test_it_ends_quietly_when_it_is_told_twice(world: dict[str, str]) -> None:
    with running(world, "--target", world["target"]) as (process, address, _):
        assert httpx.get(address + "/health").status_code == 200
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)  # two at once would be one
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "stopped" in err and "Traceback" not in err


def test_several_models_and_a_key(world: dict[str, str]) -> None:
    options = ("--target", world["target"], "--target", world["other"], "--temperature", "0")
    with running(world, *options, "--quiet", key="secret") as (process, address, _):
        assert httpx.get(address + "/v1/models").status_code == 401
        with httpx.Client(base_url=address, headers={"Authorization": "Bearer secret"}) as client:
            listed = client.get("/v1/models").json()["data"]
            assert [each["id"] for each in listed] == ["target", "other"]
            texts = set()
            for name in ("target", "other", "target"):
                asked = {"model": name, "prompt": "The quick", "max_tokens": 8}
                answer = client.post("/v1/completions", json=asked, timeout=300).json()
                assert answer["model"] == name
                texts.add(answer["choices"][0]["text"])
            assert len(texts) == 2
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0 and "POST" not in err and "secret" not in err


def test_models_are_opened_when_they_are_asked(world: dict[str, str]) -> None:
    options = ("--target", world["target"], "--target", world["other"], "--temperature", "0")
    with running(world, *options, "--model-memory", "1") as (process, address, _):
        listed = httpx.get(address + "/v1/models").json()["data"]
        assert [each["id"] for each in listed] == ["target", "other"]
        assert "omnidraft_open_targets 1.0" in httpx.get(address + "/metrics").text
        texts = []
        for name in ("target", "other", "target", "other"):
            asked = {"model": name, "prompt": "The quick", "max_tokens": 8}
            answer = httpx.post(address + "/v1/completions", json=asked, timeout=300)
            texts.append(answer.json()["choices"][0]["text"])
        assert texts[:2] == texts[2:] and texts[0] != texts[1]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    told = re.findall(r"(\w+) (opened|closed)", err)
    opened = [name for name, what in told if what == "opened"]
    assert opened == ["other", "target", "other"]  # the first one before the log begins
    assert [name for name, what in told if what == "closed"] == ["target", "other"] * 2


def test_an_adapter_is_a_model_of_its_own_and_learns(world: dict[str, str]) -> None:
    options = ("--target", world["target"], "--adapter", "work", "--learn", "--temperature", "0")
    with running(world, *options) as (process, address, _):
        listed = httpx.get(address + "/v1/models").json()["data"]
        assert [each["id"] for each in listed] == ["target", "target:work"]
        told = [each["omnidraft"] for each in listed]
        assert [each["target"] for each in told] == ["target", "target"]
        assert [each["adapter"] for each in told] == [None, "work"]
        assert [each["learns"] for each in told] == [False, True]
        texts = []
        for name in ("target", "target:work", "target"):
            asked = {"model": name, "prompt": "The quick", "max_tokens": 30}
            answer = httpx.post(address + "/v1/completions", json=asked, timeout=300)
            texts.append(answer.json()["choices"][0]["text"])
        assert texts == texts[:1] * 3
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert (Path(world["cache"]) / "adapters" / "work.adapter").is_file()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--target", "no-such-model"], "no-such-model"),
        (["--target", "./no-such-folder"], "no-such-folder"),
        (["--target", "TARGET", "--target", "TARGET"], "two targets go by the name"),
        (["--target", "TARGET", "--host", "no.such.host.invalid"], "API_KEY"),
        (["--target", "TARGET", "--host", "0.0.0.0"], "OMNIDRAFT_API_KEY"),
        (["--target", "TARGET", "--host", "no such host", "--api-key", "k"], "no such host"),
        (["--target", "TARGET", "--host", "192.0.2.1", "--api-key", "k"], "192.0.2.1"),
        (["--target", "TARGET", "--api-key", ""], "API key"),
        (["--target", "TARGET", "--port", "70000"], "70000"),
        (["--target", "TARGET", "--queue", "0"], "--queue"),
        (["--target", "TARGET", "--model-memory", "0"], "--model-memory"),
        (["--target", "TARGET", "--model-memory", "much"], "--model-memory"),
        (["--target", "TARGET", "--target", "./gone", "--model-memory", "1"], "./gone"),
        (["--target", "TARGET", "--learn"], "--adapter"),
        (["--target", "TARGET", "--adapter", "w", "--no-draft"], "--adapter"),
        (["--target", "TARGET", "--adapter", "no-such-adapter"], "no-such-adapter"),
        (["--target", "TARGET", "--adapter", "x:w"], "x:w"),
        ([], "--target"),
    ],
)
def test_mistakes_end_with_a_sentence(world: dict[str, str], options: list[str], said: str) -> None:
    words, environment = command(
        world, "--port", "0", *(world["target"] if o == "TARGET" else o for o in options)
    )
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_port_in_use(world: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words, environment = command(world, "--target", world["target"], "--port", port)
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert f"port {port} of 127.0.0.1 is in use" in done.stderr
    assert "Traceback" not in done.stderr
