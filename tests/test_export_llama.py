"""The export-friendly Llama says what transformers' Llama says."""

from __future__ import annotations

from pathlib import Path

import pytest
from needs import needs

torch = needs("torch")
transformers = needs("transformers")

from omnidraft.export.checkpoint import open_checkpoint  # noqa: E402
from omnidraft.export.checkpoint.spec import lora_shapes  # noqa: E402
from omnidraft.export.torch_llama.model import Llama, causal_mask  # noqa: E402
from omnidraft.runtime.errors import OmniDraftError  # noqa: E402

VOCAB, CONTEXT = 300, 32


def write(folder: Path, **settings: object) -> tuple[torch.nn.Module, Path]:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=VOCAB,
        max_position_embeddings=128,
        **settings,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:  # else all ones or zeros, which would hide mistakes
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    model.save_pretrained(folder)
    return model, folder


@pytest.mark.parametrize(
    "settings",
    [
        {"num_key_value_heads": 4, "tie_word_embeddings": True},
        {"num_key_value_heads": 2, "tie_word_embeddings": False},
        {"num_key_value_heads": 1, "attention_bias": True},
        {"num_key_value_heads": 4, "head_dim": 8, "mlp_bias": True},
    ],
    ids=str,
)
def test_agrees_with_transformers(tmp_path: Path, settings: dict[str, object]) -> None:
    expected_model, folder = write(tmp_path, **settings)
    checkpoint = open_checkpoint(folder)
    tokens = torch.randint(0, VOCAB, (1, 20))
    positions = torch.arange(20)
    with torch.no_grad():
        expected = expected_model(tokens).logits
        whole = Llama(checkpoint, CONTEXT, cached=False)(
            tokens, positions, causal_mask(positions, 20)
        )
        cached = Llama(checkpoint, CONTEXT)
        # Three passes; one of them is taken back and repeated with other tokens in between.
        parts = []
        for start, stop in ((0, 7), (7, 15), (10, 20)):
            part = positions[start:stop]
            parts.append(cached(tokens[:, start:stop], part, causal_mask(part, stop)))
    torch.testing.assert_close(whole, expected, atol=1e-4, rtol=0)
    stepwise = torch.cat([parts[0], parts[1][:, :3], parts[2]], dim=1)
    torch.testing.assert_close(stepwise, expected, atol=1e-4, rtol=0)


def test_lora_equals_merged_weights(tmp_path: Path) -> None:
    _, folder = write(tmp_path, num_key_value_heads=2)
    checkpoint = open_checkpoint(folder)
    base, merged = (Llama(checkpoint, CONTEXT, cached=False) for _ in range(2))
    lora = {
        name: torch.randn(shape) * 0.1
        for name, shape in lora_shapes(checkpoint.decoder, rank=3).items()
    }
    for index, layer in enumerate(merged.layers):
        for linear in ("qkv", "o", "gate_up", "down"):
            name = f"lora.{index}.{linear}"
            getattr(layer, linear).weight += (lora[f"{name}.A"] @ lora[f"{name}.B"]).T
    tokens, positions = torch.randint(0, VOCAB, (1, 9)), torch.arange(9)
    mask = causal_mask(positions, 9)
    with torch.no_grad():
        found = base(tokens, positions, mask, list(lora.values()))
        assert (found - base(tokens, positions, mask)).abs().max() > 0.01
        torch.testing.assert_close(found, merged(tokens, positions, mask), atol=1e-4, rtol=0)


def test_refuses_what_no_llama_computes(tmp_path: Path) -> None:
    config = transformers.Qwen2Config(
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=0,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
    )
    transformers.Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(OmniDraftError, match="qwen2 model with sliding windows"):
        Llama(open_checkpoint(tmp_path), CONTEXT)
