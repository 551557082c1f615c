"""Teachers on this machine, and which sampler runs them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import torch

from omnidraft.distill.config import LocalTeacher, Sampling
from omnidraft.distill.sampling import Sampler
from omnidraft.distill.sampling.conversations import Conversations, make_plans
from omnidraft.distill.sampling.openings import Openings
from omnidraft.distill.sampling.turns import turns_of
from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models.resolve import resolve_checkpoint
from omnidraft.runtime.text.tokenizer import Tokenizer


class Scene:
    """What both samplers begin conversations with.

    Args:
        tokenizer: the teacher's.
        vocab_size: columns of its logits.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, sampling: Sampling, openings: Openings
    ) -> None:
        self._tokenizer, self.sampling, self._openings = tokenizer, sampling, openings
        self._turns = turns_of(tokenizer)
        self.vocab_size = vocab_size
        self.surfaces = [tokenizer.surface(token) for token in range(vocab_size)]

    def begin(
        self, seed: int, streams: int, device: str, *, plans: int, again: bool
    ) -> Conversations:
        """Conversations at their beginnings; seeds torch's random numbers.

        Args:
            plans: different openings.
            again: see ``Conversations``.
        """
        torch.manual_seed(seed)
        beginnings = make_plans(
            plans, self._tokenizer, self._turns, self._openings, self.sampling.longest, Random(seed)
        )
        return Conversations(beginnings, self._turns, self.sampling, streams, device, again)


def open_local(
    teacher: LocalTeacher, sampling: Sampling, openings: Openings, folder: Path
) -> Sampler:
    """The sampler of a model on this machine.

    Args:
        folder: that a path is relative to.

    Raises:
        OmniDraftError: the model cannot be loaded, has no chat template, or the sampler that was
            asked for does not run it.
    """
    local = folder / teacher.model
    path = local if local.exists() else resolve_checkpoint(teacher.model)
    tokenizer = Tokenizer.load(path)
    if teacher.sampler != "library":
        problem = "it needs a CUDA device" if not torch.cuda.is_available() else None
        if problem is None:
            from omnidraft.distill.sampling.cuda_graphs import CudaGraphSampler, why_not

            checkpoint = open_checkpoint(path)
            problem = why_not(checkpoint.decoder)
            if problem is None:
                scene = Scene(tokenizer, checkpoint.decoder.vocab_size, sampling, openings)
                return CudaGraphSampler(checkpoint, scene, teacher.streams)
        if teacher.sampler == "cuda-graphs":
            raise OmniDraftError(
                f'The sampler cuda-graphs does not run {teacher.name}: {problem}. Take "library".'
            )
    from omnidraft.distill.sampling.library import LibrarySampler, load_model

    model = load_model(path)
    vocab_size = int(model.get_output_embeddings().weight.shape[0])
    scene = Scene(tokenizer, vocab_size, sampling, openings)
    return LibrarySampler(model, scene, teacher.streams)
