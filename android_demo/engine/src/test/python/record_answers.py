"""Records Python's answers with two models, for the Kotlin engine to give them again.

    python record_answers.py FOLDER PROMPTS [COUNT [TOKENS]]

FOLDER holds the converted target `target` and the drafter `drafter`, a converted model or a bundle
of the ONNX backend; `answers.json` is written there. PROMPTS is a file of JSON lines with `prompt`,
of which COUNT are answered by TOKENS each.
Each way of decoding begins with an empty n-gram cache.

Bits of a drafter's logits hold for one kind of processor: another one must give the same tokens,
and may propose others on the way. They hold for one version of ONNX Runtime, too. Where Java's is
another than Python's, record with Java's: ``pip install --no-deps --target VERSION
onnxruntime==VERSION``, and ``PYTHONPATH=VERSION``.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

WAYS: list[dict[str, Any]] = [
    {"draft_length": 4, "draft_confidence": 0.3},
    {"tree": 12},
    {"draft_length": 4, "draft_confidence": 0.3, "temperature": 0.7, "seed": 3},
    {"tree": 12, "temperature": 0.7, "seed": 3},
]
THREADS = 1  # several wait for each other where other programs run too


def main(folder: Path, prompts: Path, count: int = 50, tokens: int = 32) -> None:
    """Write ``answers.json``."""
    os.environ["OMNIDRAFT_CACHE"] = tempfile.mkdtemp()
    import omnidraft
    from omnidraft.runtime.engines import onnx_session
    from omnidraft.runtime.processor import cpu_features

    # What is recorded is compared with the same version in Java, whatever Python asks for.
    onnx_session.OLDEST_ONNXRUNTIME = (1, 17)
    texts = [json.loads(line)["prompt"] for line in prompts.read_text("utf-8").splitlines()][:count]
    recorded = []
    for way in WAYS:
        with omnidraft.load(
            folder / "target", drafter=folder / "drafter", threads=THREADS
        ) as model:
            cache = model._session.cache
            assert cache is not None and not len(cache)
            least_pass = model._session.target.model.least_pass
            answers, costs = [], []
            for text in texts:
                answer = model.generate(text, max_new_tokens=tokens, **way)
                stats = answer.stats
                costs.append(1000 * stats.python_seconds / stats.rounds)
                answers.append(
                    {
                        "prompt": list(model.encode(text)),
                        "tokens": list(answer.token_ids),
                        "rounds": stats.rounds,
                        "proposed": stats.proposed,
                        "accepted": stats.accepted,
                        "ngram_hits": stats.ngram_hits,
                    }
                )
            ngrams = hashlib.sha256(cache.to_bytes()).hexdigest()
            recorded.append({**way, "answers": answers, "cache_sha256": ngrams})
            print(way, len(cache), "n-grams;", f"{median(costs):.3f} ms of Python a round")
    content = {
        "onnxruntime": version("onnxruntime"),
        "processor": cpu_features(),
        "prompts": texts,
        "max_new_tokens": tokens,
        "threads": THREADS,
        "least_pass": least_pass,
        "ways": recorded,
    }
    (folder / "answers.json").write_text(json.dumps(content), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:5]))
