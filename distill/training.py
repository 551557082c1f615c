"""The drafter learns: stages of steps, on one process or many, that go on where they were
stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from omnidraft.distill.batches import Batch, Plan
from omnidraft.distill.config import Stage, Training
from omnidraft.distill.files import file_in_folder
from omnidraft.distill.grid import eight_bits, on_grid
from omnidraft.distill.losses import likelihood_matching, soft_cross_entropy
from omnidraft.distill.muon import Float32Muon
from omnidraft.distill.network import Drafter
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError

# Steps between two words about the loss, or seconds where steps are slow.
_TOLD = 50
_TOLD_SECONDS = 10.0
# Seconds between checkpoints where steps are so slow that much would be lost.
_KEPT_SECONDS = 120.0
_LARGEST_GRADIENT = 1.0


@dataclass(frozen=True)
class Told:
    """What the trainer says of itself.

    Args:
        step: of the stage, from 1.
        loss: mean of the last steps.
        speed: positions a second, over all processes.
    """

    step: int
    loss: float
    speed: float


def train(
    model: Drafter,
    plan: Plan,
    stage: Stage,
    settings: Training,
    *,
    checkpoint: Path,
    digest: str,
    accelerator: Accelerator,
    tell: Callable[[Told], None] = lambda _: None,
) -> None:
    """Train one stage, from its checkpoint if there is one.

    Args:
        model: of the same weights in every process; changed in place.
        plan: of this process's share.
        checkpoint: a file, written every ``settings.checkpoint_steps``, or two minutes.
        digest: of everything that decides what comes out; a checkpoint of another is refused.

    Raises:
        DamagedFileError: the checkpoint is another run's, or damaged.
        OmniDraftError: it cannot be written; or the loss is no number.
    """
    device = accelerator.device.type
    model = model.to(accelerator.device).train()
    optimizers = _optimizers(model, stage.rate)
    done = _load(checkpoint, digest, model, optimizers) if checkpoint.exists() else 0
    running, since = torch.zeros((), device=accelerator.device), time.monotonic()
    told, seen, kept = done, 0, since
    with _rounding(model, stage, device):
        for step, batch in zip(range(done, stage.steps), plan.steps(done), strict=False):
            rate = _rate(stage, step)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = rate
            running += _step(model, optimizers, batch, stage, accelerator)
            seen += settings.positions
            now, last = time.monotonic(), step + 1 == stage.steps
            if (step + 1) % _TOLD == 0 or now - since >= _TOLD_SECONDS or last:
                took, since = now - since, now
                loss = float(running) / (step + 1 - told)
                if not loss < float("inf"):  # NaN is not
                    raise OmniDraftError(
                        f"The loss is no number after step {step + 1}. Take a lower rate; delete "
                        f"{checkpoint.parent} to begin the training anew."
                    )
                tell(Told(step + 1, loss, seen / took))
                running.zero_()
                told, seen = step + 1, 0
            regular = (step + 1) % settings.checkpoint_steps == 0 or last
            if regular or now - kept >= _KEPT_SECONDS:
                if accelerator.is_main_process:
                    _save(checkpoint, digest, model, optimizers, step + 1)
                kept = time.monotonic()
            if regular:  # the others' clocks may be behind
                accelerator.wait_for_everyone()


def _step(
    model: Drafter,
    optimizers: list[torch.optim.Optimizer],
    batch: Batch,
    stage: Stage,
    accelerator: Accelerator,
) -> Tensor:
    """One step; the loss over all processes."""
    device = accelerator.device.type
    loss = torch.zeros((), device=accelerator.device)
    if len(batch.where):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            hidden = model(batch.ids).flatten(0, 1)[batch.where]
            loss = _loss(hidden, model.head(), batch, stage)
        loss.backward()
    parameters = list(model.parameters())
    if accelerator.num_processes > 1:
        _sum_gradients(parameters, accelerator)
        loss = accelerator.reduce(loss.detach(), "sum")
    torch.nn.utils.clip_grad_norm_(parameters, _LARGEST_GRADIENT)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def _loss(hidden: Tensor, head: Tensor, batch: Batch, stage: Stage) -> Tensor:
    weights = batch.weights / max(batch.weight, 1e-6)
    if stage.loss == "alm":
        return likelihood_matching(hidden, head, batch.tokens, batch.chunks, weights)
    if stage.loss == "hard":
        labels = batch.tokens[:, None].expand_as(batch.labels).contiguous()
        shares = torch.zeros_like(batch.shares)
        shares[:, 0] = 1
    else:
        labels, shares = batch.labels, batch.shares
        if stage.sharpen != 1:
            shares = shares ** (1 / stage.sharpen)
            shares = shares / shares.sum(-1, keepdim=True)
    if hidden.is_cuda:
        hidden = hidden.bfloat16()
    return soft_cross_entropy(hidden, head, labels, shares, weights)


def _sum_gradients(parameters: list[Tensor], accelerator: Accelerator) -> None:
    """Each process has the gradient of its share of a mean over all."""
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
    flat = accelerator.reduce(torch.cat([each.flatten() for each in gradients]), "sum")
    for parameter, part in zip(
        parameters, flat.split([p.numel() for p in parameters]), strict=True
    ):
        parameter.grad = part.view_as(parameter)


def _rate(stage: Stage, step: int) -> float:
    """Up over ``warm_up`` of the steps, then down to zero."""
    done = (step + 0.5) / stage.steps
    rising = done / stage.warm_up if stage.warm_up else 1.0
    return stage.rate * min(rising, (1 - done) / max(1 - stage.warm_up, 1e-9))


def _optimizers(model: Drafter, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embedding and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "layers" in name]
    others = [p for name, p in model.named_parameters() if not (p.dim() == 2 and "layers" in name)]
    muon: Any = torch.optim.Muon
    settings = {"lr": rate, "weight_decay": 0.02, "momentum": 0.95}
    on_gpu = matrices[0].is_cuda
    return [
        muon(matrices, adjust_lr_fn="match_rms_adamw", **settings)
        if on_gpu
        else Float32Muon(matrices, **settings),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


@contextmanager
def _rounding(model: Drafter, stage: Stage, device: str) -> Iterator[None]:
    """Weights and inputs as the stage wants them."""
    exact = model.rounding.weights, model.rounding.inputs
    if stage.grid:
        compiled = device == "cuda"
        model.rounding.weights = torch.compile(on_grid) if compiled else on_grid
        model.rounding.inputs = torch.compile(eight_bits, dynamic=True) if compiled else eight_bits
    try:
        yield
        if stage.grid:
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() == 2:
                        parameter.copy_(on_grid(parameter))
    finally:
        model.rounding.weights, model.rounding.inputs = exact


def _save(
    path: Path, digest: str, model: Drafter, optimizers: list[torch.optim.Optimizer], done: int
) -> None:
    content = {
        "digest": digest,
        "done": done,
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    with file_in_folder(path) as file:
        torch.save(content, file)


def _load(path: Path, digest: str, model: Drafter, optimizers: list[torch.optim.Optimizer]) -> int:
    """The number of steps that are done."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["digest"] != digest:
            raise DamagedFileError(
                f"{path} belongs to another configuration. Choose another folder, or delete it."
            )
        model.load_state_dict(content["model"])
        for optimizer, state in zip(optimizers, content["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        return int(content["done"])
    except DamagedFileError:
        raise
    except Exception as error:  # of torch.load, which shares no narrower class
        raise DamagedFileError(
            f"{path} is damaged: {error}. Delete it to train this stage anew."
        ) from error
