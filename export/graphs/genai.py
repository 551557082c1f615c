"""A drafter's graph under transformers' names, as onnxruntime-genai and optimum's users load it.

Beside it lie ``genai_config.json``, which onnxruntime-genai reads, and ``config.json``, which the
others do. Operators are ONNX Runtime's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from onnx import TensorProto, ValueInfoProto, helper

from omnidraft.export.checkpoint.spec import Decoder
from omnidraft.export.graphs.drafter import DrafterWriter
from omnidraft.export.graphs.writer import GRAPH_FILE
from omnidraft.runtime.storage.bundle import SpecialTokens

GENAI_FILE, CONFIG_FILE = "genai_config.json", "config.json"


class GenaiWriter(DrafterWriter):
    """A ``DrafterWriter`` with other inputs and outputs, for batches of one text.

    Inputs: ``input_ids``, ``position_ids`` int64 [1, n], ``attention_mask`` int64 [1, total] of
    ones, and per layer ``past_key_values.i.key``, ``past_key_values.i.value`` float32 [1, kv_heads,
    past, head_size]. Outputs: ``logits`` float32 [1, n, vocab] and ``present.i.key``,
    ``present.i.value``, which are as long as the mask, or the past's memory where that has room.
    """

    positions = ("position_ids",)

    def interface(self) -> tuple[list[ValueInfoProto], list[ValueInfoProto]]:
        d, value = self.decoder, helper.make_tensor_value_info
        n, total = "sequence_length", "total_sequence_length"
        inputs = [
            value("input_ids", TensorProto.INT64, [1, n]),
            value("attention_mask", TensorProto.INT64, [1, total]),
            value("position_ids", TensorProto.INT64, [1, n]),
        ]
        outputs = [value("logits", TensorProto.FLOAT, [1, n, d.vocab_size])]

        def caches(names: tuple[str, str], length: str) -> list[ValueInfoProto]:
            shape: list[str | int] = [1, d.kv_heads, length, d.head_size]
            return [value(name, TensorProto.FLOAT, shape) for name in names]

        for i in range(d.layers):
            inputs += caches(self.cache_names("past", i), "past_sequence_length")
            outputs += caches(self.cache_names("present", i), total)
        return inputs, outputs

    def cache_names(self, when: Literal["past", "present"], i: int) -> tuple[str, str]:
        prefix = "past_key_values" if when == "past" else "present"
        return f"{prefix}.{i}.key", f"{prefix}.{i}.value"

    def embedding(self) -> str:
        self.node("Identity", ["input_ids"], ["tokens"])
        return super().embedding()

    def prepare(self) -> None:
        """Also the lengths that attention asks for, of the mask."""
        super().prepare()
        count = self.node("ReduceSum", ["attention_mask", self.integers(1)], keepdims=0)
        last = self.node("Sub", [count, self.integers(1)])
        self.node("Cast", [last], ["last_position"], to=TensorProto.INT32)
        length = self.node("Shape", ["attention_mask"], start=1)
        length = self.node("Squeeze", [length, self.integers(0)])
        self.node("Cast", [length], ["total_length"], to=TensorProto.INT32)

    def last_rows(self, x: str) -> str:
        """All of them."""
        return x


def write_configs(
    folder: Path, decoder: Decoder, context: int, special_tokens: SpecialTokens
) -> None:
    """Write ``genai_config.json`` and ``config.json`` beside the graph."""
    d = decoder
    ends = special_tokens.ends
    ids: dict[str, Any] = {"eos_token_id": ends, "pad_token_id": ends[0] if ends else 0}
    if special_tokens.beginning is not None:
        ids["bos_token_id"] = special_tokens.beginning
    caches = {
        f"{when}_{part}_names": f"{prefix}.%d.{part}"
        for when, prefix in (("past", "past_key_values"), ("present", "present"))
        for part in ("key", "value")
    }
    names = {name: name for name in ("input_ids", "attention_mask", "position_ids")}
    genai = {
        "model": {
            **ids,
            "type": "llama",
            "vocab_size": d.vocab_size,
            "context_length": context,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": GRAPH_FILE,
                "hidden_size": d.hidden_size,
                "head_size": d.head_size,
                "num_attention_heads": d.heads,
                "num_key_value_heads": d.kv_heads,
                "num_hidden_layers": d.layers,
                "inputs": names | {k: v for k, v in caches.items() if k.startswith("past")},
                "outputs": {"logits": "logits"}
                | {k: v for k, v in caches.items() if k.startswith("present")},
            },
        },
        "search": {
            "do_sample": False,
            "max_length": context,
            "num_beams": 1,
            "num_return_sequences": 1,
            "past_present_share_buffer": True,
        },
    }
    config = {
        **ids,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": d.hidden_size,
        "intermediate_size": d.feed_forward_size,
        "num_hidden_layers": d.layers,
        "num_attention_heads": d.heads,
        "num_key_value_heads": d.kv_heads,
        "head_dim": d.head_size,
        "vocab_size": d.vocab_size,
        "max_position_embeddings": context,
        "rms_norm_eps": d.norm_epsilon,
        "hidden_act": "silu",
        "attention_bias": d.output_bias,
        "mlp_bias": d.mlp_bias,
        "tie_word_embeddings": d.tied_embeddings,
        "use_cache": True,
    }
    for file, values in ((GENAI_FILE, genai), (CONFIG_FILE, config)):
        (folder / file).write_text(json.dumps(values, indent=2) + "\n", "utf-8")
