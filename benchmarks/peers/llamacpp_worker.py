"""llama.cpp through xllamacpp: plainly, with its n-gram modes, and with a drafter in GGUF."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from importlib.metadata import version
from time import perf_counter
from typing import Any

import xllamacpp

from benchmarks.peers.worker import Request, serve

KINDS = {
    "plain": "NONE",
    "draft model": "DRAFT_SIMPLE",
    "n-gram simple": "NGRAM_SIMPLE",
    "n-gram map": "NGRAM_MAP_K",
    "n-gram mod": "NGRAM_MOD",
    "n-gram cache": "NGRAM_CACHE",
}


class LlamaCpp:
    """A GGUF file as it is.

    llama.cpp takes its way to draft when it opens a model. So a server is opened for each setting,
    and the last one is closed first: where a process has more threads than there are processors,
    OpenMP's no longer wait for each other awake, which halved the speed. Opening is not measured.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._server: xllamacpp.Server | None = None
        self._opened: tuple[str, Mapping[str, Any]] | None = None
        self.version = f"xllamacpp {version('xllamacpp')}"

    def _serving(self, method: str, setting: Mapping[str, Any]) -> xllamacpp.Server:
        if self._server is None or self._opened != (method, setting):
            self.fresh()
            self._server = self._open(method, setting)
            self._opened = (method, setting)
        return self._server

    def _open(self, method: str, setting: Mapping[str, Any]) -> xllamacpp.Server:
        parameters = xllamacpp.CommonParams()
        parameters.model.path = self._settings["ggufs"][self._settings["precision"]]
        parameters.n_ctx = self._settings["max_length"]
        parameters.n_parallel = 1
        parameters.n_gpu_layers = 0
        parameters.verbosity = 0
        parameters.cpuparams.n_threads = self._settings["threads"]
        parameters.cpuparams_batch.n_threads = self._settings["threads"]
        speculative = parameters.speculative
        kind = getattr(
            xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{KINDS[method]}"
        )
        speculative.types = [kind]
        if method == "draft model":
            speculative.draft.mparams.path = self._settings["ggufs"]["drafter"]
            speculative.draft.n_gpu_layers = 0
            speculative.draft.cpuparams.n_threads = self._settings["threads"]
            speculative.draft.cpuparams_batch.n_threads = self._settings["threads"]
            speculative.draft.n_max = setting["draft_length"]
            speculative.draft.p_min = setting["confidence"]
        elif method in ("n-gram simple", "n-gram map"):
            lookup = (
                speculative.ngram_simple if method == "n-gram simple" else speculative.ngram_map_k
            )
            lookup.size_n, lookup.size_m = setting["ngram_size"], setting["draft_length"]
        elif method == "n-gram mod":
            lookup = speculative.ngram_mod
            lookup.n_match, lookup.n_min = setting["ngram_size"], 1
            lookup.n_max = setting["draft_length"]
        return xllamacpp.Server(parameters)

    def fresh(self) -> None:
        """Forget the n-grams of earlier prompts, which a server keeps."""
        self._server = None

    def generate(self, request: Request) -> dict[str, Any]:
        """The answer as a whole.

        The server says how long decoding took after the first token. The whole is the clock's here.
        """
        server = self._serving(request["method"], request["setting"])
        body = {
            "prompt": request["tokens"],
            "n_predict": request["max_new_tokens"],
            "temperature": request["temperature"],
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "seed": request["seed"],
            "cache_prompt": False,
            "return_tokens": True,
        }
        question = urllib.request.Request(
            f"{server.listening_address}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        started = perf_counter()
        with urllib.request.urlopen(question) as reply:
            answer = json.load(reply)
        seconds = perf_counter() - started
        tokens, timings = answer["tokens"], answer["timings"]
        return {
            "tokens": tokens,
            "decoded": len(tokens) - 1,
            "decode_seconds": timings["predicted_ms"] / 1000,
            "total_seconds": seconds,
            "rounds": len(tokens) - timings.get("draft_n_accepted", 0),
        }


if __name__ == "__main__":
    serve(LlamaCpp)
