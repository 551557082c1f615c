"""Nothing leaves the machine, and nothing but OmniDraft's own files is left in a home folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny import write_drafter, write_target

# Loaded before everything else in a process: notes every look-up of a name and every connection
# to another machine, and refuses it.
RECORDER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

static void note(const char* what, const char* whom) {
  FILE* calls = fopen(getenv("NETWORK_CALLS"), "a");
  fprintf(calls, "%s %s\n", what, whom);
  fclose(calls);
}

int getaddrinfo(const char* name, const char* service, const struct addrinfo* hints,
                struct addrinfo** found) {
  note("getaddrinfo", name ? name : "");
  return EAI_FAIL;
}

struct hostent* gethostbyname(const char* name) {
  note("gethostbyname", name);
  return NULL;
}

int connect(int socket, const struct sockaddr* address, socklen_t size) {
  if (address->sa_family == AF_INET || address->sa_family == AF_INET6) {
    note("connect", "");
    errno = ENETUNREACH;
    return -1;
  }
  int (*original)(int, const struct sockaddr*, socklen_t) = dlsym(RTLD_NEXT, "connect");
  return original(socket, address, size);
}
"""

# Longer than the nine seconds after which ONNX Runtime 1.32 looks up where to send its records.
LINGER = 12
LINGERING = f"""
import sys, time
import omnidraft
session = omnidraft.load(*sys.argv[1:])
session.generate("The quick brown fox")
print("ready", flush=True)
time.sleep({LINGER})
"""


@dataclass
class Home:
    """An empty home folder, beside tiny models and a record of what asks for the network."""

    root: Path
    environment: dict[str, str]

    @property
    def calls(self) -> list[str]:
        """Look-ups and connections so far."""
        return Path(self.environment["NETWORK_CALLS"]).read_text().splitlines()

    @property
    def strangers(self) -> list[str]:
        """Files in it outside the cache and data folders of OmniDraft."""
        home = self.root / "home"
        return [
            name
            for path in home.rglob("*")
            if not path.is_dir()
            and not (name := path.relative_to(home).as_posix()).startswith(
                (".cache/omnidraft/", ".local/share/omnidraft/")
            )
        ]

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env={**self.environment, **variables},
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **variables: str) -> str:
        child = self.start(*arguments, **variables)
        said, complained = child.communicate(timeout=240)
        assert child.returncode == 0, complained
        return said + complained


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("what a process asks of the network is recorded on Linux with a C compiler")
    root = tmp_path_factory.mktemp("privacy")
    (root / "recorder.c").write_text(RECORDER)
    recorder, calls = root / "recorder.so", root / "calls"
    build = [compiler, "-shared", "-fPIC", "-o", str(recorder), str(root / "recorder.c"), "-ldl"]
    subprocess.run(build, check=True)
    calls.touch()
    (root / "home").mkdir()
    write_target(root / "target")
    write_drafter(root / "drafter", seed=1)
    (root / "prompts.jsonl").write_text(json.dumps({"prompt": "The quick brown fox"}) + "\n")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(root / "home"),
        "LD_PRELOAD": str(recorder),
        "NETWORK_CALLS": str(calls),
    }
    return Home(root, environment)


@pytest.fixture(scope="module")
def lingering(home: Home) -> Iterator[subprocess.Popen[str]]:
    """A session that lives while the commands run."""
    with home.start("-c", LINGERING, "target", "drafter") as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == "ready\n", child.stderr.read()
        yield child
        child.kill()


@pytest.mark.parametrize(
    "command",
    [
        "models pull target",
        "models list",
        "doctor",
        "generate --target target --drafter drafter --prompt Hello --max-new-tokens 8",
        "bench prompts.jsonl --target target --drafter drafter --max-new-tokens 8",
        "adapt prompts.jsonl --target target --drafter drafter --adapter a --max-new-tokens 8",
        "export drafter --output bundle --lora-rank 4",
        "inspect bundle --verify",
        "profile prompts.jsonl --target target --drafter drafter --max-new-tokens 8 --repeat 1",
    ],
    ids=lambda command: command.split(" -")[0],
)
def test_a_command_asks_no_network_and_leaves_no_strange_file(
    home: Home, lingering: subprocess.Popen[str], command: str
) -> None:
    home.run("-m", "omnidraft", *command.split())
    assert home.calls == []
    assert home.strangers == []


def test_a_session_asks_no_network_while_it_lives(
    home: Home, lingering: subprocess.Popen[str]
) -> None:
    assert lingering.wait(timeout=60) == 0
    assert home.calls == []
    assert home.strangers == []


def test_the_recorder_notes_what_asks_the_network(home: Home, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    asking = """
import contextlib, socket
with contextlib.suppress(OSError):
    socket.getaddrinfo("name.invalid", 443)
with contextlib.suppress(OSError):
    socket.socket().connect(("192.0.2.1", 443))
"""
    home.run("-c", asking, NETWORK_CALLS=str(calls))
    assert calls.read_text().splitlines() == ["getaddrinfo name.invalid", "connect "]


@pytest.mark.parametrize(
    ("first", "variables", "value", "warned"),
    [
        ("", {}, "1", False),
        ("import onnxruntime", {}, "1", True),
        ("import onnxruntime", {"ORT_DISABLE_TELEMETRY": "1"}, "1", False),
        ("", {"ORT_DISABLE_TELEMETRY": "0"}, "0", False),
    ],
)
def test_the_users_own_setting_stands_and_what_cannot_be_stopped_is_said(
    home: Home, tmp_path: Path, first: str, variables: dict[str, str], value: str, warned: bool
) -> None:
    script = f"{first}\nimport omnidraft, os\nprint(os.environ['ORT_DISABLE_TELEMETRY'])"
    said = home.run("-c", script, HOME=str(tmp_path), **variables)
    assert said.startswith(f"{value}\n")
    assert ("imported before omnidraft" in said) == warned


def test_the_hub_is_not_told_what_is_installed(home: Home) -> None:
    script = "import omnidraft, huggingface_hub.utils as u; print(u.build_hf_headers())"
    assert "hf_hub/" in (said := home.run("-c", script)) and "torch/" not in said
