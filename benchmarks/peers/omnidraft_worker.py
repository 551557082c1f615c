"""OmniDraft, plainly and with a drafter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import omnidraft
from benchmarks.peers.worker import Request, Trace, serve
from omnidraft.cli.loading import open_models
from omnidraft.opening import adapter_choice


class OmniDraft:
    """A converted target with a drafter, and if asked for with one that has an adapter.

    What is learned from prompts, n-grams for instance, is gone after ``fresh``.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.version = omnidraft.__version__
        self._adapter: str | None = settings["adapter"]
        open_pair = (settings["target"], settings["drafter"], settings["precision"], None)
        threads = settings["threads"]
        self._target, self._drafter = open_models(*open_pair, threads)
        if self._adapter:
            # A drafter with inputs for an adapter is another graph.
            _, self._learnable = open_models(*open_pair, threads, learnable=True)
        self.fresh()

    def fresh(self) -> None:
        plain = omnidraft.Session(self._target, self._drafter)
        self._sessions: dict[str | None, omnidraft.Session] = {None: plain}
        if self._adapter:
            choice = adapter_choice(self._adapter, learn=False)
            self._sessions[self._adapter] = omnidraft.Session(
                self._target, self._learnable, adapter=choice
            )

    def generate(self, request: Request) -> dict[str, Any]:
        setting = request["setting"]
        length = setting["draft_length"] if request["method"] != "plain" else 0
        options = omnidraft.GenerationOptions(
            max_new_tokens=request["max_new_tokens"],
            sampling=omnidraft.SamplingParameters(temperature=request["temperature"]),
            # An automatic length depends on measured times and cannot be repeated.
            seed=None if length == "auto" else request["seed"],
            draft_length=length,
        )
        session, trace, rounds = self._sessions[setting.get("adapter")], Trace(), 0
        session.forget()
        for piece in session.stream(request["prompt"], options):
            assert session.last is not None
            if piece.token is None:
                continue
            if session.last.statistics.rounds != rounds:
                rounds = session.last.statistics.rounds
                trace.add([piece.token])
            else:
                trace.extend(piece.token)
        return trace.as_dict()


if __name__ == "__main__":
    serve(OmniDraft)
