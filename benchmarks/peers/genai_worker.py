"""onnxruntime-genai: plainly, and with its n-gram lookup. Builds its model at first use."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import onnxruntime_genai as genai

from benchmarks.peers.worker import Request, Trace, serve


class Genai:
    """The checkpoint as genai's own builder writes it, 4-bit, block 32, accuracy level 4."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        folder = Path(settings["genai_folder"])
        if not folder.is_dir():
            _build(Path(settings["checkpoint"]), folder)
        config = genai.Config(str(folder))
        session = {"intra_op_num_threads": settings["threads"]}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self._model = genai.Model(config)
        self.version = f"{genai.__version__}, onnxruntime {onnxruntime.__version__}"

    def fresh(self) -> None:
        """Nothing is learned."""

    def generate(self, request: Request) -> dict[str, Any]:
        prompt, stop = request["tokens"], set(request["stop"])
        options = genai.GeneratorParams(self._model)
        options.set_search_options(
            max_length=len(prompt) + request["max_new_tokens"],
            do_sample=request["temperature"] > 0,
            temperature=request["temperature"] or 1.0,
            top_k=0,
            top_p=1.0,
            random_seed=request["seed"],
        )
        if request["method"] == "n-gram lookup":
            setting = request["setting"]
            least = setting.get("least_length", 0)  # where it is given the length adapts
            options.set_speculative_options(
                ngram_size=setting["ngram_size"],
                max_draft_tokens=setting.get("draft_length", least),
                min_adaptive_k=least,
                ngram_chained_lookup=setting.get("chained", False),
                cooldown=setting.get("cooldown", False),
            )
        trace = Trace()
        generator = genai.Generator(self._model, options)
        generator.append_tokens(np.array(prompt, dtype=np.int32))
        while not generator.is_done():
            generator.generate_next_token()
            trace.add(generator.get_next_tokens().tolist())
            if trace.tokens[-1] in stop:
                break
        stats = generator.get_speculative_stats()
        # Where nothing is found one token is decoded as ever.
        passes = stats["target_forward_passes"] + stats["standard_fallback_steps"]
        # The prompt's pass gives a token too.
        return trace.as_dict(rounds=1 + passes if passes else None)


def _build(checkpoint: Path, folder: Path) -> None:
    """In a process of its own, so that nothing of PyTorch stays in this one."""
    command = [sys.executable, "-m", "benchmarks.peers.genai_build", str(checkpoint), str(folder)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"onnxruntime-genai's builder fails on this checkpoint: {lines[-1]}")


if __name__ == "__main__":
    serve(Genai)
