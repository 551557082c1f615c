"""Tell other programs what a bundle holds: in its ONNX files, and in words in its README.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import tokenizers

from omnidraft.runtime.storage.bundle import Bundle, Graph, SpecialTokens, Tensor
from omnidraft.runtime.text.tokenizer import Tokenizer

README_FILE = "README.md"
KERNELS = {
    "aten": "portable or optimized",
    "dim_order_ops": "portable",
    "quantized_decomposed": "quantized",
    "llama": "custom",
}
"""Which of ExecuTorch's libraries have an operator, by its namespace."""


def special_tokens(tokenizer: Tokenizer, files: Mapping[str, bytes]) -> SpecialTokens:
    """What a text begins and ends with.

    Args:
        files: the tokenizer's: see ``tokenizer_files``.
    """
    beginning = tokenizer.bos_id if tokenizer.add_bos else None
    plain = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    return SpecialTokens(
        beginning=beginning,
        tokenizer_adds_it=beginning is not None and plain.encode("").ids[:1] == [beginning],
        ends=sorted(tokenizer.eos_ids),
    )


def describe_folder(bundle: Bundle, folder: Path) -> None:
    """Write what the manifest says of the graphs into the ONNX files and a README.md."""
    for graph in bundle.graphs:
        if graph.file.endswith(".onnx"):
            _annotate(folder / graph.file, graph, bundle)
    (folder / README_FILE).write_text(_readme(bundle), "utf-8")


def _annotate(path: Path, graph: Graph, bundle: Bundle) -> None:
    import onnx  # not at the top: exports for ExecuTorch do without

    model = onnx.load(path, load_external_data=False)
    model.doc_string = f"{_title(bundle)}. {_beginning_text(bundle)}"
    model.graph.doc_string = graph.usage
    for tensor, value in zip(
        (*graph.inputs, *graph.outputs), (*model.graph.input, *model.graph.output), strict=True
    ):
        value.doc_string = _meaning(tensor)
    del model.metadata_props[:]
    for key, text in _properties(bundle, graph).items():
        model.metadata_props.add(key=f"omnidraft.{key}", value=text)
    onnx.save_model(model, path)


def _properties(bundle: Bundle, graph: Graph) -> dict[str, str]:
    """For programs: what is not in the graph itself, each as JSON."""
    values: dict[str, object] = {
        "role": graph.role,
        "quantization": bundle.quantization,
        "geometry": bundle.geometry.model_dump(),
        "usage": graph.usage,
    }
    if bundle.special_tokens is not None:
        values["special_tokens"] = bundle.special_tokens.model_dump()
    if bundle.lora is not None:
        values["lora"] = bundle.lora.model_dump()
    if scales := {
        tensor.name: {"scale": tensor.scale, "zero_point": tensor.zero_point}
        for tensor in (*graph.inputs, *graph.outputs)
        if tensor.scale is not None
    }:
        values["quantized"] = scales
    return {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}


def _title(bundle: Bundle) -> str:
    g = bundle.geometry
    merged = f" with adapter {bundle.merged.adapter}" if bundle.merged else ""
    return (
        f"{bundle.name}{merged}: a drafter for {bundle.backend}, weights {bundle.quantization}, "
        f"{g.layers} layers of {g.hidden_size}, {g.vocab_size:,} tokens, context "
        f"{g.context_length:,}"
    )


def _beginning_text(bundle: Bundle) -> str:
    special = bundle.special_tokens
    if special is None or special.beginning is None:
        begins = "Nothing stands in front of a text."
    else:
        adds = "adds it" if special.tokenizer_adds_it else "does not add it by itself"
        begins = (
            f"A text begins with token {special.beginning}, which the caller puts there: no graph "
            f"does. tokenizer.json {adds}."
        )
    if special is None or not special.ends:
        return begins
    return f"{begins} It ends after {' or '.join(map(str, special.ends))}."


def _meaning(tensor: Tensor) -> str:
    if tensor.scale is None:
        return tensor.meaning
    return f"{tensor.meaning}. Value = (stored - {tensor.zero_point}) x {tensor.scale:.9g}"


def _readme(bundle: Bundle) -> str:
    parts = [
        f"# {_title(bundle)}",
        "Exported by OmniDraft. `omnidraft.json` says the same for programs, with the sha256 of "
        "every file, the bits of the weights and the agreement with float32.",
        _beginning_text(bundle),
    ]
    for graph in bundle.graphs:
        passes = f", {graph.tokens} tokens a pass" if graph.tokens else ""
        if graph.most_tokens:
            passes = f", up to {graph.most_tokens} tokens a pass"
        method = f", method `{graph.method}`" if graph.file.endswith(".pte") else ""
        parts += [
            f"## `{graph.file}` ({graph.role}{method}{passes})",
            graph.usage,
            *_needs(graph),
            *(
                _table(what, tensors)
                for what, tensors in (("input", graph.inputs), ("output", graph.outputs))
                if tensors
            ),
        ]
    return "\n\n".join(parts) + "\n"


def _needs(graph: Graph) -> list[str]:
    """What an ExecuTorch runtime has to have, in words."""
    needed = [f"the delegate {name}" for name in graph.delegates]
    for domain, library in KERNELS.items():
        if names := [name for name in graph.operators if name.startswith(f"{domain}::")]:
            needed.append(f"{library} kernels ({', '.join(names)})")
    return [f"A runtime needs {' and '.join(needed)}."] if needed else []


def _table(what: str, tensors: Iterable[Tensor]) -> str:
    """Layers that differ in nothing but their number are one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for tensor in tensors:
        shape = ", ".join(map(str, tensor.shape))
        row: tuple[str, ...] = (tensor.name, tensor.dtype, shape, _meaning(tensor))
        layer = re.search(r"(?<=\.)\d+(?=\.)", tensor.name)
        if layer:
            number = rf"(?<=[._ ]){layer[0]}(?=[._ ',;]|$)"
            row = tuple(re.sub(number, "i", text) for text in row)
        rows.setdefault(row, []).append(layer[0] if layer else "")
    lines = [f"| {what} | dtype | shape | what it holds |", "| --- | --- | --- | --- |"]
    for (name, dtype, shape, says), layers in rows.items():
        of = f", i = {layers[0]}…{layers[-1]}" if layers[0] else ""
        lines.append(f"| `{name}`{of} | {dtype} | [{shape}] | {says} |")
    return "\n".join(lines)
