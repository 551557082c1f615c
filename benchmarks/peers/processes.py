"""The parent's side of a worker: start it, ask it, end it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.peers.plan import Contestant

ROOT = Path(__file__).resolve().parents[2]


class WorkerError(Exception):
    """A worker cannot do what it was asked; the message says why."""


class Worker:
    """A running worker, to be used in a ``with`` statement.

    Args:
        contestant: whose engine it has.
        settings: what its engine is opened with.
        python: the interpreter of the environment in which the engine is installed.
        log: a file for what its libraries print.

    Raises:
        WorkerError: the engine is not installed or cannot open the target.
    """

    def __init__(
        self, contestant: Contestant, settings: Mapping[str, Any], python: str, log: Path
    ) -> None:
        self.contestant = contestant
        settings = {**settings, "precision": contestant.precision}
        module = f"benchmarks.peers.{contestant.module}"
        with log.open("wb") as errors:
            try:
                self._process = subprocess.Popen(
                    [python or sys.executable, "-m", module, json.dumps(settings)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    cwd=ROOT,
                    text=True,
                    encoding="utf-8",
                )
            except OSError as error:
                raise WorkerError(f"{python} does not start: {error.strerror}") from error
        self._log = log
        try:
            self.version: str = self._receive()["version"]
        except BaseException:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises:
            WorkerError: it failed, or the process has died.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._died()
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise WorkerError(f"it answered {line.strip()[:80]!r}") from error
        if "missing" in answer:
            install = self.contestant.install
            raise WorkerError(f"not installed ({answer['missing']}): {install}")
        if "failed" in answer:
            raise WorkerError(answer["failed"])
        return answer

    def _died(self) -> WorkerError:
        code = self._process.wait()
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        if "ModuleNotFoundError" in last or "ImportError" in last:
            return WorkerError(f"not installed{last}: {self.contestant.install}")
        return WorkerError(f"the process ended with code {code}{last}")

    def close(self) -> None:
        """End the process; one that does not heed the end of its input is killed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
