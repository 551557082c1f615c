"""Teachers by transformers, on the CPU or a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnidraft.distill.sampling.conversations import document_of
from omnidraft.distill.sampling.local import Scene
from omnidraft.distill.shards import TOP, Document
from omnidraft.runtime.engines.failures import cannot_load


def load_model(path: Path) -> Any:
    """A checkpoint's folder or a GGUF file as transformers loads it, on the first CUDA device if
    there is one.

    Raises:
        DamagedFileError: transformers cannot load it.
    """
    import transformers

    cuda = torch.cuda.is_available()
    options: dict[str, Any] = {"dtype": "bfloat16" if cuda else "float32", "local_files_only": True}
    if path.is_file():
        options["gguf_file"] = path.name
    try:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent if path.is_file() else path, **options
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise cannot_load(path, error) from error
    return model.to("cuda" if cuda else "cpu").eval()


class LibrarySampler:
    """A ``Sampler`` of batches: all conversations of one are ended before the next begins."""

    def __init__(self, model: Any, scene: Scene, streams: int) -> None:
        self._model, self._scene, self._streams = model, scene, streams
        self.surfaces = scene.surfaces

    @torch.inference_mode()
    def documents(self, seed: int) -> Iterator[Document]:
        """See ``Sampler``."""
        scene, device = self._scene, str(self._model.device)
        batch = 0
        while True:
            state = scene.begin(
                seed + batch, self._streams, device, plans=self._streams, again=False
            )
            log: list[tuple[Tensor, ...]] = []
            lengths = torch.zeros(self._streams, dtype=torch.long, device=device)
            cache: Any = None
            while not bool(state.over.all()):
                lengths += ~state.over
                read = (state.token.clone(), state.kind.clone(), state.position.clone())
                out = self._model(state.token[:, None], past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                logits = out.logits[:, -1].float()
                sampled, top, shares, total = choose(
                    logits, state.temperature, scene.sampling.least_share
                )
                state.advance(sampled)
                likelihood = logits.gather(1, state.token[:, None])[:, 0] - total
                log.append((*read, top, shares, likelihood))
            # The token that ends a conversation has not been read.
            lengths += 1
            log.append((state.token, state.kind, state.position, *log[-1][3:]))
            columns = [torch.stack(each, 1).cpu().numpy() for each in zip(*log, strict=True)]
            for row, length in enumerate(lengths.tolist()):
                yield document_of([column[row, :length] for column in columns])
            batch += 1


def choose(
    logits: Tensor, temperature: Tensor, least_share: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What is said next, and what was likely.

    Args:
        logits: float32 [rows, vocab].
        temperature: float32 [rows]; 0: the likeliest.
        least_share: tokens below this share of the likeliest one's probability are not sampled.

    Returns:
        sampled int64 [rows]; top int64, shares float32 [rows, TOP], at temperature 1; and the
        logits' log-sum-exp, float32 [rows].
    """
    total = logits.logsumexp(-1)
    values, top = logits.topk(TOP)
    peak = values[:, :1]
    noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-9, 1 - 1e-7)))
    noisy = (logits - peak) / temperature.clamp(min=1e-3)[:, None] + noise
    least = math.log(least_share) if least_share > 0 else -math.inf
    noisy = noisy.masked_fill(logits < peak + least, -math.inf)
    sampled = torch.where(temperature > 0, noisy.argmax(-1), top[:, 0])
    return sampled, top, (values - total[:, None]).exp(), total
