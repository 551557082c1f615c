"""What the training step must compute, as torch's autograd computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaForCausalLM

from omnidraft.runtime.learning.training_step import TrainingBatch, TrainingResult

Lora = dict[str, NDArray[np.float32]]


class Reference:
    """transformers' Llama in float64 with LoRA added from outside, and the losses as defined."""

    def __init__(self, folder: Path) -> None:
        model = LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager")
        self.model = model.eval().double().requires_grad_(False)
        self.lora: dict[str, torch.Tensor] = {}
        for i, layer in enumerate(self.model.model.layers):
            attention, mlp = layer.self_attn, layer.mlp
            groups = {
                "qkv": (attention.q_proj, attention.k_proj, attention.v_proj),
                "o": (attention.o_proj,),
                "gate_up": (mlp.gate_proj, mlp.up_proj),
                "down": (mlp.down_proj,),
            }
            for linear, modules in groups.items():
                start = 0
                for module in modules:
                    stop = start + module.out_features
                    module.register_forward_hook(self._adding(f"lora.{i}.{linear}", start, stop))
                    start = stop

    def _adding(self, name: str, start: int, stop: int) -> Callable[..., torch.Tensor]:
        def hook(_: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            a, b = self.lora[f"{name}.A"], self.lora[f"{name}.B"]
            return output + inputs[0] @ a @ b[:, start:stop]

        return hook

    def __call__(self, batch: TrainingBatch, lora: Lora) -> TrainingResult:
        self.lora = {k: torch.from_numpy(v).double().requires_grad_() for k, v in lora.items()}
        inputs = {
            k: torch.from_numpy(v if v.dtype == np.int64 else v.astype(np.float64))
            for k, v in batch.inputs(self.model.config.vocab_size).items()
        }
        hidden = self.model.model(
            input_ids=inputs["tokens"],
            position_ids=inputs["positions"],
            attention_mask=inputs["mask"][None, None],
            use_cache=False,
        ).last_hidden_state[0, inputs["rows"]]
        q = torch.softmax(self.model.lm_head(hidden), dim=-1)
        count = len(batch.rows)
        label_q = q[torch.arange(count), inputs["label"]]
        log_label = label_q.log()
        kl = [self.divergence(r, q[r], label_q, inputs) for r in range(count)]
        divergence = [
            binarised(log_p, (chunk * log_label).sum(), float(inputs["temperature"]))
            for chunk, log_p in zip(inputs["chunks"], inputs["chunk_log_p"], strict=True)
        ]
        # Keeps a sum of nothing differentiable.
        zero = torch.stack([0 * factor.sum() for factor in self.lora.values()]).sum()

        def weighted(weights: str, values: list[torch.Tensor]) -> torch.Tensor:
            return zero + sum(w * v for w, v in zip(inputs[weights], values, strict=True))

        parts = {
            "direct_loss": weighted("direct_weight", kl),
            "label_loss": weighted("label_weight", [-x for x in log_label]),
            "chunk_loss": weighted("chunk_weight", divergence),
        }
        loss = sum(parts.values())
        loss.backward()

        def array(values: Any) -> NDArray[np.float32]:
            return np.array([v.item() for v in values], np.float32)

        return TrainingResult(
            loss=float(loss.detach()),
            **{name: float(part.detach()) for name, part in parts.items()},
            kl=array(kl),
            log_label=array(log_label),
            chunk_divergence=array(divergence),
            hidden=hidden.detach().float().numpy(),
            best=q.argmax(-1).numpy(),
            gradients={k: v.grad.float().numpy() for k, v in self.lora.items()},
        )

    @staticmethod
    def divergence(
        r: int, q: torch.Tensor, label_q: torch.Tensor, inputs: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """D(q' ‖ p) of row r, outcome by outcome."""
        direct_q = q * inputs["direct_tokens"]
        mass = direct_q.sum()
        listed = [i for i, token in enumerate(inputs["direct_ids"][r]) if token >= 0]
        ids = inputs["direct_ids"][r, listed]
        draft: dict[int | str, torch.Tensor] = {int(t): q[t] / mass for t in ids}
        target: dict[int | str, torch.Tensor] = {
            int(t): inputs["direct_log_p"][r, i].exp() for i, t in zip(listed, ids, strict=True)
        }
        first = int(inputs["label"][r])
        for c, chunk in enumerate(inputs["chunks"]):
            if inputs["merged"][c, r]:
                product = label_q[chunk > 0].prod() / mass
                draft[-1 - c] = product
                target[-1 - c] = inputs["chunk_log_p"][c].exp()
                if first in draft:
                    draft[first] = draft[first] - product
        one = torch.ones((), dtype=q.dtype)
        draft["rest"] = one - sum(draft.values())
        target["rest"] = one - sum(target.values())
        return torch.stack([draft[t] * (draft[t] / target[t]).log() for t in draft]).sum()


def binarised(log_p: torch.Tensor, log_s: torch.Tensor, temperature: float) -> torch.Tensor:
    """ALM (arXiv 2503.20083), equation 8 with f = KL."""
    a, b = (x.double().clamp(max=-1e-7) / temperature for x in (log_p, log_s))
    other_p, other_s = -torch.expm1(a), -torch.expm1(b)
    return a.exp() * (a - b) + other_p * (other_p / other_s).log()
