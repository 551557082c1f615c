"""Servers to ask: ours, and llama.cpp's of the package xllamacpp."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

_LLAMACPP = """
import sys, time
from xllamacpp import CommonParams, Server
p = CommonParams()
p.model.path, threads, p.n_parallel = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
p.n_ctx, p.verbosity = 2048 * p.n_parallel, 0
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
server = Server(p)
print("listening at", server.listening_address + "/v1", flush=True)
while True:
    time.sleep(3600)
"""


class Server:
    """A server in a process of its own.

    Args:
        command: it says "at http://…/v1" when it takes connections.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self.url = ""
        self.start()

    def start(self) -> None:
        """Start it, after ``kill`` on the port that it had."""
        command = list(self._command)
        if self.url and "--port" in command:
            command[command.index("--port") + 1] = self.url.rsplit(":", 1)[1]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            if found := re.search(r"at (http://\S+?)/v1", line):
                self.url = found[1]
                # What it says later must not fill the pipe.
                threading.Thread(target=self._process.stdout.read, daemon=True).start()
                return
        raise SystemExit("the server did not begin:\n" + "".join(said[-20:]))

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it as a person would."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def holds(self) -> dict[str, float]:
        """What it holds: memory in megabytes, open files, threads."""
        process = psutil.Process(self._process.pid)
        return {
            "megabytes": process.memory_info().rss / 1e6,
            "files": process.num_fds(),
            "threads": process.num_threads(),
        }


def omnidraft(target: str, *options: str) -> Server:
    """Ours, on a free port."""
    command = [sys.executable, "-m", "omnidraft", "serve", "--target", target]
    return Server([*command, "--port", "0", "--quiet", *options])


def llamacpp(gguf: Path, threads: int, parallel: int) -> Server:
    """llama.cpp's, with so many slots; their contexts hold 2,048 tokens each."""
    python = os.environ.get("XLLAMACPP_PYTHON", sys.executable)
    return Server([python, "-u", "-c", _LLAMACPP, str(gguf), str(threads), str(parallel)])


def chunk_of(line: str) -> dict[str, Any] | None:
    """The object in a line of a stream, if there is one."""
    chunk: dict[str, Any] | None = None
    if line.startswith("data: {"):
        chunk = json.loads(line.removeprefix("data: "))
    return chunk
