"""Record what the Python engine computes, for the tests of the Kotlin engine.

    python android_demo/engine/src/test/python/record_models.py --make     # the tiny models anew
    python android_demo/engine/src/test/python/record_models.py [FOLDER]   # what they compute

FOLDER may hold real models: converted ones and exported drafters. Beside each of their folders a
file ``NAME.passes.json`` is written. Bits of logits hold for one kind of processor and one version
of ONNX Runtime; both are recorded. Drafters for NPUs need onnxruntime-qnn for that.
Java's version may be another than Python's. Then record with Java's:
``pip install --no-deps --target FOLDER onnxruntime==VERSION``, and ``PYTHONPATH=FOLDER``.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import omnidraft  # noqa: F401  before ONNX Runtime, whose telemetry it turns off

ROOT = Path(__file__).resolve().parents[5]
sys.path.insert(0, str(ROOT / "tests"))

import onnxruntime as ort  # noqa: E402
from onnx import save_model  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402
from tiny import byte_level_tokenizer, sentencepiece_tokenizer  # noqa: E402

from omnidraft.export.checkpoint import open_checkpoint  # noqa: E402
from omnidraft.export.conversion import convert  # noqa: E402
from omnidraft.export.graphs.qdq import observe, quantize  # noqa: E402
from omnidraft.export.graphs.static import fix, write_static_graph  # noqa: E402
from omnidraft.export.pipeline import export  # noqa: E402
from omnidraft.export.recipes import Options  # noqa: E402
from omnidraft.runtime.engines import onnx_session  # noqa: E402
from omnidraft.runtime.engines.onnx import OnnxModel  # noqa: E402
from omnidraft.runtime.engines.qnn import QnnModel, StaticDecoder  # noqa: E402
from omnidraft.runtime.processor import cpu_features  # noqa: E402
from omnidraft.runtime.storage.bundle import BUNDLE_FILE, Bundle  # noqa: E402
from omnidraft.runtime.storage.lora import sizes_beside_rank  # noqa: E402
from omnidraft.runtime.storage.manifest import MANIFEST_FILE  # noqa: E402
from omnidraft.runtime.text.tokenizer import tokenizer_files  # noqa: E402

# What is recorded is compared with the same version in Java, whatever Python asks for elsewhere.
onnx_session.OLDEST_ONNXRUNTIME = (1, 17)
RESOURCES = Path(__file__).resolve().parents[1] / "resources" / "models"
# An NPU's graphs before they are compiled, which any processor runs.
STATIC = RESOURCES.with_name("static")
STATIC_CONTEXT, STATIC_SIZES = 96, (1, 8)
CONTEXT = 320
SAMPLES = 8
# Written by the export for its own comparison, and larger than all the rest.
REFERENCE = "reference.npz"


def write_checkpoint(folder: Path, tokenizer: Any, chat: bool) -> Path:
    """A Llama of two layers that is as small as the kernels allow."""
    rng = np.random.default_rng(4)
    hidden, inner, heads, kv_heads, size = 32, 64, 2, 1, 16
    vocab = tokenizer.get_vocab_size()

    def weight(*shape: int) -> NDArray[np.float32]:
        return (rng.standard_normal(shape) * 0.1).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": weight(vocab, hidden) * 10,
        "model.norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": weight(vocab, hidden) * 4,
    }
    for layer in range(2):
        name = f"model.layers.{layer}."
        shapes = {
            "self_attn.q_proj": (heads * size, hidden),
            "self_attn.k_proj": (kv_heads * size, hidden),
            "self_attn.v_proj": (kv_heads * size, hidden),
            "self_attn.o_proj": (hidden, heads * size),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        tensors |= {f"{name}{part}.weight": weight(*shape) for part, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}{norm}.weight"] = np.ones(hidden, np.float32)
    folder.mkdir()
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
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>"} if chat else {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def write_models(output: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source = write_checkpoint(Path(scratch) / "target", byte_level_tokenizer(272), True)
        files = tokenizer_files(source)
        for quantization in ("4bit", "8bit"):
            convert(source, output / f"target-{quantization}", quantization, extra_files=files)
        source = write_checkpoint(Path(scratch) / "drafter", sentencepiece_tokenizer(280), False)
        for name, own in (("drafter-own", True), ("drafter-any", False)):
            folder = output / name
            options = Options("int8", own=own, train_step=own, lora_rank=4)
            export(str(source), folder, options=options)
            bundle = Bundle.load(folder)
            files_left = {k: v for k, v in bundle.files.items() if k != REFERENCE}
            bundle.model_copy(update={"files": files_left}).save(folder)
            (folder / REFERENCE).unlink()


def write_static() -> None:
    """The drafter's graphs with 16-bit caches, as ``decoder_{tokens}.onnx``."""
    texts = [list(np.random.default_rng(seed).integers(3, 250, 70)) for seed in range(4)]
    with tempfile.TemporaryDirectory() as scratch:
        source = write_checkpoint(Path(scratch) / "drafter", sentencepiece_tokenizer(280), False)
        graph = write_static_graph(open_checkpoint(source), STATIC_CONTEXT, 4)

        def silent(stage: str, done: int, total: int) -> None:
            pass

        quantized = quantize(graph, observe(graph, texts, silent), silent)
        for size in STATIC_SIZES:
            save_model(fix(quantized, size, STATIC_CONTEXT), STATIC / f"decoder_{size}.onnx")


def open_static(folder: Path) -> StaticDecoder:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return StaticDecoder(
        {
            size: ort.InferenceSession(str(folder / f"decoder_{size}.onnx"), options)
            for size in STATIC_SIZES
        }
    )


def adapter_of(sizes: dict[str, int], rank: int, seed: int) -> dict[str, NDArray[np.float32]]:
    """Small numbers that every language computes alike: see ``Recorded.adapter`` in Kotlin."""
    adapter = {}
    for place, name in enumerate(sorted(sizes)):
        shape = (sizes[name], rank) if name.endswith(".A") else (rank, sizes[name])
        numbers = (np.arange(shape[0] * shape[1]) * 37 + 11 * place + seed) % 101 - 50
        adapter[name] = (numbers.astype(np.float32) / np.float32(512)).reshape(shape)
    return adapter


class Recorder:
    """Does things with a model, and notes what came of them."""

    def __init__(self, model: Any, lora_sizes: dict[str, int]) -> None:
        self.model = model
        self.lora_sizes = lora_sizes
        self.rng = np.random.default_rng(7)
        self.steps: list[dict[str, Any]] = []

    def tokens(self, count: int) -> list[int]:
        return [int(each) for each in self.rng.integers(0, self.model.vocab_size, count)]

    def note(self, logits: NDArray[np.float32], **step: Any) -> None:
        last = logits[-1]
        places = np.linspace(0, len(last) - 1, SAMPLES).astype(int)
        step["sha256"] = hashlib.sha256(np.ascontiguousarray(logits).tobytes()).hexdigest()
        step["sample"] = {int(place): float(last[place]) for place in places}
        if self.model.hidden_size:
            step["hidden"] = hashlib.sha256(self.model.last_hidden().tobytes()).hexdigest()
        step["length"] = self.model.length
        self.steps.append(step)

    def forward(self, count: int, rows: int | None = None) -> None:
        tokens = self.tokens(count)
        logits = self.model.forward(tokens, rows)
        self.note(logits, do="forward", tokens=tokens, rows=rows or count)

    def tree(self, parents: list[int], rows: int | None = None) -> None:
        """``parents`` count from the end of the text: -1 is its last token."""
        held = self.model.held
        slots = [len(held) + parent for parent in parents]
        tokens = self.tokens(len(slots))
        logits = self.model.forward_tree(tokens, slots, rows)
        step = {"do": "tree", "tokens": tokens, "parents": slots, "rows": rows or len(slots)}
        self.note(logits, **step)

    def keep(self, path: list[int]) -> None:
        slots = [len(self.model.held) + node for node in path]
        self.model.keep(slots)
        self.steps.append({"do": "keep", "path": slots, "length": self.model.length})

    def truncate(self, length: int) -> None:
        self.model.truncate(length)
        self.steps.append({"do": "truncate", "length": length})

    def adapter(self, rank: int, seed: int = 0, skipped: str = "-") -> None:
        sizes = {k: v for k, v in self.lora_sizes.items() if skipped not in k}
        self.model.set_adapter(adapter_of(sizes, rank, seed) if rank else None)
        self.steps.append({"do": "adapter", "rank": rank, "seed": seed, "without": skipped})


def passes(folder: Path, *, threads: int = 2, least_pass: int = 0) -> dict[str, Any]:
    """Passes of many sizes, trees and cuts, over where the bound cache grows."""
    model = OnnxModel(folder, threads=threads)
    model.least_pass = least_pass
    recorder = Recorder(model, model._lora_sizes)
    long = min(300, recorder.model.max_length - 20)
    recorder.forward(5)
    recorder.forward(1)
    recorder.forward(80, rows=3)
    recorder.forward(9)
    recorder.forward(1)
    recorder.forward(4)
    if recorder.model.scores_trees:
        recorder.tree([-1, -1, 0, 0, 1, 3, 5])
        recorder.tree([6, 6, 2], rows=2)
        recorder.keep([0, 3, 5, 6, 8])
        recorder.forward(2)
        recorder.tree([-1, 0, 1])
        recorder.keep([])
        recorder.forward(1)
        recorder.tree([-1, *range(11)])
        recorder.truncate(90)
    recorder.truncate(90)
    recorder.forward(7)
    recorder.truncate(0)
    recorder.forward(long, rows=50)  # cut into two passes
    recorder.forward(12)
    if recorder.lora_sizes:
        recorder.adapter(4)
        recorder.forward(40, rows=2)
        recorder.forward(1)
        recorder.adapter(8, seed=5, skipped="gate_up")
        recorder.forward(40)
        if recorder.model.scores_trees:
            recorder.tree([-1, -1, 0, 1])
            recorder.keep([1, 3])
        recorder.adapter(0)
        recorder.forward(5)
    return summary(recorder, threads, least_pass, model.kv_bytes_per_token)


def static_passes(model: StaticDecoder) -> dict[str, Any]:
    """Passes of one and of several graphs, cuts, and adapters of the graphs' rank and a lower."""
    recorder = Recorder(model, sizes_beside_rank(model.lora_shapes))
    rank = next(iter(model.lora_shapes.values()))[1]
    recorder.forward(5)
    recorder.forward(1)
    recorder.forward(20, rows=3)
    recorder.truncate(9)
    recorder.forward(1)
    recorder.forward(8, rows=1)
    recorder.adapter(rank)
    recorder.forward(12)
    recorder.forward(1)
    recorder.adapter(rank - 1, seed=5, skipped="gate_up")
    recorder.forward(model.max_length)
    recorder.adapter(0)
    recorder.forward(5)
    return summary(recorder, 1, 0, 0)


def summary(recorder: Recorder, threads: int, least_pass: int, kv_bytes: int) -> dict[str, Any]:
    return {
        "threads": threads,
        "least_pass": least_pass,
        "processor": cpu_features(),
        "onnxruntime": ort.__version__,
        "kv_bytes_per_token": kv_bytes,
        "max_length": recorder.model.max_length,
        "steps": recorder.steps,
    }


def record(folder: Path) -> None:
    if (folder / BUNDLE_FILE).is_file() and Bundle.load(folder).backend == "qnn":
        write(folder, [static_passes(QnnModel(folder))])
    else:
        write(folder, [passes(folder), passes(folder, threads=1, least_pass=2)])


def write(folder: Path, runs: list[dict[str, Any]]) -> None:
    text = ",\n".join(json.dumps(run) for run in runs)
    folder.with_name(f"{folder.name}.passes.json").write_text(f"[{text}]\n", "utf-8")


def main(arguments: list[str]) -> None:
    if arguments == ["--make"]:
        shutil.rmtree(RESOURCES, ignore_errors=True)
        RESOURCES.mkdir(parents=True)
        write_models(RESOURCES)
        shutil.rmtree(STATIC, ignore_errors=True)
        STATIC.mkdir()
        write_static()
        return
    if not arguments:
        write(STATIC, [static_passes(open_static(STATIC))])
    folder = Path(arguments[0]) if arguments else RESOURCES
    for each in sorted(folder.iterdir()):
        if any((each / name).is_file() for name in (MANIFEST_FILE, BUNDLE_FILE)):
            record(each)


if __name__ == "__main__":
    main(sys.argv[1:])
