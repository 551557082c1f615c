"""transformers on the CPU: plainly, with prompt lookup, and with a drafter of other vocabulary."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.peers.worker import Request, Trace, serve


class _Rounds:
    """A streamer: transformers hands it the prompt first, then the tokens of each round."""

    def __init__(self) -> None:
        self.trace = Trace()
        self._begun = False

    def put(self, tokens: torch.Tensor) -> None:
        if self._begun:
            self.trace.add(tokens.flatten().tolist())
        self._begun = True

    def end(self) -> None:
        """Nothing is left to be shown."""


class Transformers:
    """The checkpoint's own weights, dequantized, in float32 or bfloat16."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        torch.set_num_threads(settings["threads"])
        dtype = getattr(torch, settings["precision"])
        path = Path(settings["checkpoint"])
        folder, gguf = (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})
        load = transformers.AutoModelForCausalLM.from_pretrained
        self._target = load(folder, dtype=dtype, **gguf)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **gguf)
        drafter = load(settings["drafter_checkpoint"], dtype=dtype)
        # Token-level intersection cuts the drafter's head down in place.
        self._drafters = {"re-encoding": drafter, "intersection": copy.deepcopy(drafter)}
        self._draft_tokenizer = transformers.AutoTokenizer.from_pretrained(
            settings["drafter_checkpoint"]
        )
        self.version = f"{transformers.__version__}, torch {torch.__version__}"

    def fresh(self) -> None:
        """Nothing is learned."""

    def generate(self, request: Request) -> dict[str, Any]:
        torch.manual_seed(request["seed"])
        tokens = torch.tensor([request["tokens"]])
        rounds = _Rounds()
        with torch.inference_mode():
            self._target.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=request["max_new_tokens"],
                eos_token_id=request["stop"],
                pad_token_id=request["stop"][0] if request["stop"] else 0,
                streamer=rounds,
                **_sampling(request),
                **self._method(request),
            )
        return rounds.trace.as_dict()

    def _method(self, request: Request) -> dict[str, Any]:
        method, setting = request["method"], request["setting"]
        if method == "prompt lookup":
            return {"prompt_lookup_num_tokens": setting["draft_length"]}
        if method not in self._drafters:
            return {}
        drafter = self._drafters[method]
        drafter.generation_config.num_assistant_tokens = setting["draft_length"]
        drafter.generation_config.num_assistant_tokens_schedule = "constant"
        drafter.generation_config.assistant_confidence_threshold = setting["confidence"]
        return {
            "assistant_model": drafter,
            "tokenizer": self._tokenizer,
            "assistant_tokenizer": self._draft_tokenizer,
        }


def _sampling(request: Request) -> dict[str, Any]:
    if request["temperature"]:
        temperature = request["temperature"]
        return {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    if request["method"] == "intersection":
        # This mode exists for sampling only; from one token there is nothing to choose.
        return {"do_sample": True, "temperature": 1.0, "top_k": 1, "top_p": 1.0}
    return {"do_sample": False}


if __name__ == "__main__":
    serve(Transformers)
