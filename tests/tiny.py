"""Tiny random checkpoints with trained tokenizers, in the form people download models in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXT = (
    "The quick brown fox jumps over the lazy dog. def add(a, b):\n    return a + b\n"
    "Ünïcödé 😀 中文 العربية\ttabs and  spaces 12345. What is the answer? The answer is 42. "
) * 3

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level_tokenizer(vocab_size: int = 400) -> Tokenizer:
    """As GPT-2's, with ChatML markers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def sentencepiece_tokenizer(vocab_size: int = 480) -> Tokenizer:
    """As Llama-2's: ▁ for spaces, byte fallback, <s> in front."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<unk>", "<s>", "</s>", *byte_tokens],
        show_progress=False,
    )
    # Word by word, as SentencePiece learns: no token spans a space.
    tokenizer.train_from_iterator(TEXT.split(), trainer)
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def write_checkpoint(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    seed: int = 0,
    context: int = 512,
    chat: bool = True,
    padding: int = 0,
) -> Path:
    """A Llama of two layers with random weights, as a Hugging Face folder.

    Args:
        padding: columns of the logits that no token uses.
    """
    rng = np.random.default_rng(seed)
    hidden, inner, heads, kv_heads, size = 64, 96, 4, 2, 16
    vocab = tokenizer.get_vocab_size() + padding

    def weight(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.08).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": weight(vocab, hidden) * 12,
        "model.norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": weight(vocab, hidden) * 4,
    }
    for layer in range(2):
        name = f"model.layers.{layer}."
        tensors |= {
            name + "input_layernorm.weight": np.ones(hidden, np.float32),
            name + "post_attention_layernorm.weight": np.ones(hidden, np.float32),
            name + "self_attn.q_proj.weight": weight(heads * size, hidden),
            name + "self_attn.k_proj.weight": weight(kv_heads * size, hidden),
            name + "self_attn.v_proj.weight": weight(kv_heads * size, hidden),
            name + "self_attn.o_proj.weight": weight(hidden, heads * size),
            name + "mlp.gate_proj.weight": weight(inner, hidden),
            name + "mlp.up_proj.weight": weight(inner, hidden),
            name + "mlp.down_proj.weight": weight(hidden, inner),
        }
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if chat:
        settings |= {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    else:
        settings |= {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_target(folder: Path, **options: object) -> Path:
    """A small chat model with a byte-level tokenizer."""
    return write_checkpoint(folder, byte_level_tokenizer(), **options)  # type: ignore[arg-type]


def write_drafter(folder: Path, **options: object) -> Path:
    """A small drafter with a SentencePiece tokenizer."""
    return write_checkpoint(folder, sentencepiece_tokenizer(), chat=False, **options)  # type: ignore[arg-type]
