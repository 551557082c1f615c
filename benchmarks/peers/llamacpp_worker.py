"""llama.cpp through llama-cpp-python: plainly, and with its prompt lookup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from benchmarks.peers.worker import Request, Trace, serve


class LlamaCpp:
    """The GGUF file as it is."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        # Drafting needs the logits of every position, plain decoding only the last one's.
        self._plain = self._open(None)
        self._drafted: llama_cpp.Llama | None = None
        self.version = f"llama-cpp-python {llama_cpp.__version__}"

    def _open(self, draft_model: LlamaPromptLookupDecoding | None) -> llama_cpp.Llama:
        threads = self._settings["threads"]
        return llama_cpp.Llama(
            self._settings["checkpoint"],
            n_ctx=self._settings["max_length"],
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=0,
            draft_model=draft_model,
            verbose=False,
        )

    def fresh(self) -> None:
        """Nothing is learned."""

    def generate(self, request: Request) -> dict[str, Any]:
        model = self._plain
        if request["method"] == "prompt lookup":
            lookup = LlamaPromptLookupDecoding(num_pred_tokens=request["setting"]["draft_length"])
            model = self._drafted = self._drafted or self._open(lookup)
            model.draft_model = lookup
        model.set_seed(request["seed"])
        model.reset()
        stop, passes = set(request["stop"]), 0
        evaluate = model.eval

        def counted(tokens: Any) -> None:
            nonlocal passes
            passes += 1
            evaluate(tokens)

        model.eval = counted
        trace = Trace()
        try:
            for token in model.generate(
                request["tokens"], temp=request["temperature"], top_k=0, top_p=1.0, min_p=0.0
            ):
                trace.add([int(token)])
                if len(trace.tokens) >= request["max_new_tokens"] or token in stop:
                    break
        finally:
            del model.eval
        return trace.as_dict(rounds=passes)


if __name__ == "__main__":
    serve(LlamaCpp)
