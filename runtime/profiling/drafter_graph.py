"""What a drafter's static graph would read and compute: of the size its folder states."""

from __future__ import annotations

from pathlib import Path

from omnidraft.runtime.profiling.devices import DrafterGraph
from omnidraft.runtime.storage.bundle import BUNDLE_FILE, Bundle, Geometry
from omnidraft.runtime.storage.manifest import MANIFEST_FILE, Manifest

# Of keys and values, and of weights, in a graph for an NPU: 16-bit activations, 8-bit weights.
_ACTIVATION_BYTES, _WEIGHT_BYTES = 2, 1


def drafter_graph(path: Path) -> DrafterGraph | None:
    """The graph that the drafter in a folder has on an NPU; None where its size is not stated.

    Raises:
        DamagedFileError: its manifest cannot be read.
    """
    if (path / BUNDLE_FILE).is_file():
        return graph_of(Bundle.read(path).geometry)
    if not (path / MANIFEST_FILE).is_file():
        return None
    m = Manifest.load(path)
    if not m.feed_forward_size:
        return None
    return graph_of(
        Geometry(
            layers=m.layers,
            hidden_size=m.hidden_size,
            feed_forward_size=m.feed_forward_size,
            heads=m.heads,
            kv_heads=m.kv_heads,
            head_size=m.head_size,
            vocab_size=m.vocab_size,
            context_length=m.context_length,
        )
    )


def graph_of(geometry: Geometry) -> DrafterGraph:
    """The graph of a Llama of that shape. Of the embedding only some rows are read."""
    g = geometry
    attention = (2 * g.heads + 2 * g.kv_heads) * g.head_size
    layer = g.hidden_size * (attention + 3 * g.feed_forward_size)
    weights = g.layers * layer + g.vocab_size * g.hidden_size
    return DrafterGraph(
        weight_bytes=weights * _WEIGHT_BYTES,
        kv_bytes=2 * g.layers * g.kv_heads * g.head_size * _ACTIVATION_BYTES,
        products=weights,
        kv_products=2 * g.layers * g.heads * g.head_size,
    )
