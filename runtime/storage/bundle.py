"""``omnidraft.json``: what an exported drafter's folder holds and how it was proven equal.

The schema lives here and nowhere else: the export writes it, engines and ``omnidraft inspect``
read it.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError
from omnidraft.runtime.storage.manifest import BUNDLE_FILE as BUNDLE_FILE
from omnidraft.runtime.storage.manifest import Backend as Backend
from omnidraft.runtime.storage.manifest import BundleQuantization, Layout, file_sha256
from omnidraft.runtime.storage.reading import LARGEST_JSON, inside, read_bounded, reading
from omnidraft.runtime.storage.validation import mistakes

SCHEMA_VERSION = 2

Quantization = BundleQuantization

PROMISED_BITS: dict[Quantization, int] = {"float16": 16, "int8": 8, "int4": 4, "a16w8": 8}
"""The width of weights that the name of a quantization promises."""


class _Part(BaseModel):
    # Unknown fields are refused: a misspelt one must not be ignored in silence.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Geometry(_Part):
    """The shape of a Llama decoder."""

    layers: Annotated[int, Field(ge=1)]
    hidden_size: Annotated[int, Field(ge=1)]
    feed_forward_size: Annotated[int, Field(ge=1)]
    heads: Annotated[int, Field(ge=1)]
    kv_heads: Annotated[int, Field(ge=1)]
    head_size: Annotated[int, Field(ge=1)]
    vocab_size: Annotated[int, Field(ge=1)]
    context_length: Annotated[int, Field(ge=1, description="longest sequence, in tokens")]


class Tensor(_Part):
    """An input or output of a graph; a dimension with a name is dynamic.

    ``meaning`` says what it holds. A quantized one holds integers, whose value is
    (stored - ``zero_point``) x ``scale``.
    """

    name: str
    dtype: str
    shape: list[int | str]
    meaning: str = ""
    scale: Annotated[float, Field(gt=0)] | None = None
    zero_point: int | None = None


class SpecialTokens(_Part):
    """The tokens that a text begins and ends with.

    ``beginning`` is what the caller puts in front of a text, as no graph does; None: nothing.
    ``tokenizer_adds_it``: whether tokenizer.json puts it there where special tokens are asked for.
    After any of ``ends`` a text is over.
    """

    beginning: Annotated[int, Field(ge=0)] | None
    tokenizer_adds_it: bool
    ends: list[Annotated[int, Field(ge=0)]]


class Graph(_Part):
    """One graph of a bundle, or the weights that other programs make one of.

    ``role`` is ``decoder`` for every graph that scores tokens, ``training`` for a training step.
    ``tokens`` is how many tokens a pass of a static graph takes, None where the graph is dynamic;
    ``most_tokens`` how many a dynamic graph takes at most, None where that is not bounded.
    ``usage`` says how it is stepped. Weights alone have no inputs and outputs. Of ExecuTorch:
    ``method`` is the program's, ``delegates`` and ``operators`` are what it asks a runtime for.
    """

    role: Literal["decoder", "training"]
    file: str
    tokens: Annotated[int, Field(ge=1)] | None = None
    most_tokens: Annotated[int, Field(ge=1)] | None = None
    inputs: list[Tensor]
    outputs: list[Tensor]
    usage: str = ""
    method: str = "forward"
    delegates: list[str] = []
    operators: list[str] = []


class Lora(_Part):
    """LoRA inputs of the graphs.

    For each layer i and linear in ``linears`` there are inputs ``lora.{i}.{linear}.A`` float32
    [in, rank] and ``lora.{i}.{linear}.B`` float32 [rank, out]; the layer's output grows by
    (x @ A) @ B. Heads and rotary halves are in the order of Hugging Face's Llama; ``qkv`` and
    ``gate_up`` are one linear each, its parts one after another. ``rank`` is the rank of static
    graphs, the proposed one of dynamic graphs of ONNX, and the largest of those of ExecuTorch,
    which take no rank of 0 and compute nonsense of it: for the base model give zeros of rank 1.
    """

    rank: Annotated[int, Field(ge=1)]
    linears: list[Literal["qkv", "o", "gate_up", "down"]] = ["qkv", "o", "gate_up", "down"]


class Emulation(_Part):
    """A compiled graph in its chip's emulation beside the same quantized graph on the CPU.

    ``relative_error`` is ‖emulated - CPU‖ / ‖CPU‖ over the logits of all positions.
    """

    positions: Annotated[int, Field(ge=1)]
    top1_agreement: Annotated[float, Field(ge=0, le=1)]
    relative_error: Annotated[float, Field(ge=0)]


class Soc(_Part):
    """The chip a bundle was compiled for; ``emulation`` where the exporting machine emulates it.

    ``shared_weights``: whether the graphs are in one binary and have one copy of the weights, as
    only the chip can load them. What was measured is then of graphs that were compiled apart.
    """

    name: str
    model_id: int
    htp_architecture: str
    emulation: Emulation | None = None
    shared_weights: bool = False


class WeightShare(_Part):
    """The weights that a decoder stores with so many bits each.

    ``products`` counts the linears, the head among them, ``elements`` their weights and those of
    the embedding; ``share`` is the part of all elements. Norms and LoRA inputs are no weights here.
    """

    bits: Annotated[int, Field(ge=1)]
    products: Annotated[int, Field(ge=0)]
    elements: Annotated[int, Field(ge=1)]
    share: Annotated[float, Field(gt=0, le=1)]


class Parity(_Part):
    """Agreement with the float32 model, teacher-forced on held text.

    ``kl`` is the mean of D(float32 ‖ bundle) in nats over the float32 model's 128 likeliest tokens
    and the rest as one outcome; ``acceptance_agreement`` is the mean over positions of
    Σ min(q, q_float32) over the same outcomes: the acceptance rate of one model's draft tokens
    under the other. ``largest_logit_difference`` is over these tokens' logits.

    ``logit_error`` is the noise in these logits beside their signal,
    Σ (d − mean d)² / Σ (z − mean z)²: z are the float32 model's logits of a position's 128 tokens,
    d what the bundle's differ from them, both without their mean, which softmax does not see; the
    sums are over tokens and positions. Being relative, it means the same whether the model is
    sure of what it says or, untrained, of nothing: an equal model has 0, a model that says the
    same of every token 1, an unrelated one of the same kind more than that. A token that a bundle
    leaves out, as it is never drafted, counts as if its logit were the mean.
    """

    positions: Annotated[int, Field(ge=1)]
    top1_agreement: Annotated[float, Field(ge=0, le=1)]
    kl: Annotated[float, Field(ge=0)]
    acceptance_agreement: Annotated[float, Field(ge=0, le=1)]
    largest_logit_difference: Annotated[float, Field(ge=0)]
    logit_error: Annotated[float, Field(ge=0)]
    measured_with: str


class Thresholds(_Part):
    """What an export had to reach.

    ``smallest_agreement`` is for top-1 and for acceptance agreement, each, and None for an
    untrained model, of which neither says anything. ``largest_logit_error`` is for
    ``Parity.logit_error``, and None where an agreement was asked for by ``--min-agreement``.
    """

    smallest_agreement: Annotated[float, Field(ge=0, le=1)] | None
    largest_logit_error: Annotated[float, Field(ge=0)] | None


class Merged(_Part):
    """An adapter that was added to the weights before they were stored.

    Parity is then agreement with the float32 model that has it, too. ``target`` is what it was
    learned for. ``kept`` is how much of the adapter's change of the float32 model's logits the
    bundle shows: 1 is all of it, 0 none; None until that is measured.
    """

    adapter: str
    target: str
    kept: Annotated[float, Field(ge=0)] | None = None


class Latency(_Part):
    """Milliseconds of one decoding step of one token, in a process that does nothing else.

    ``milliseconds`` is the median and ``p95_milliseconds`` the 95th percentile of ``steps`` steps.
    """

    context: int
    threads: int
    milliseconds: Annotated[float, Field(gt=0)]
    p95_milliseconds: Annotated[float, Field(gt=0)]
    steps: Annotated[int, Field(ge=1)]
    processor: str
    emulated: bool = False


class FileEntry(_Part):
    """A file of the bundle."""

    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Bundle(_Part):
    """A drafter exported for one backend."""

    schema_version: Literal[2] = 2
    name: str
    backend: Backend
    layout: Layout = "omnidraft"
    quantization: Quantization
    geometry: Geometry
    soc: Soc | None = None
    lora: Lora | None = None
    merged: Merged | None = None
    max_threads: Annotated[int, Field(ge=1)] | None = None
    special_tokens: SpecialTokens | None = None
    graphs: Annotated[list[Graph], Field(min_length=1)]
    weights: Annotated[list[WeightShare], Field(min_length=1)]
    source_sha256: str
    versions: dict[str, str]
    parity: Parity | None = None
    thresholds: Thresholds | None = None
    latency: list[Latency] = []
    files: dict[str, FileEntry]

    @property
    def decoders(self) -> list[Graph]:
        """The graphs that score tokens."""
        return [graph for graph in self.graphs if graph.role == "decoder"]

    @property
    def promised_share(self) -> float | None:
        """The part of the weights whose width is the one that the quantization's name promises.

        None: it promises none.
        """
        promised = PROMISED_BITS.get(self.quantization)
        if promised is None:
            return None
        return sum(part.share for part in self.weights if part.bits == promised)

    @property
    def weights_text(self) -> str:
        """The widths of the weights, in words."""
        products = sum(part.products for part in self.weights)
        elements = sum(part.elements for part in self.weights)
        parts = (
            f"{part.share:.1%} have {part.bits} bits ({part.products} of {products} products)"
            for part in self.weights
        )
        return f"of {elements / 1e6:.2f} M weights {', '.join(parts)}"

    @property
    def size(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(entry.size for entry in self.files.values())

    def save(self, folder: Path) -> None:
        """Write ``omnidraft.json`` into ``folder``, replacing one that is there."""
        values = self.model_dump(mode="json")
        values["digest"] = _digest(values)
        temporary = folder / f"{BUNDLE_FILE}.tmp"
        temporary.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
        temporary.replace(folder / BUNDLE_FILE)

    @classmethod
    def load(cls, folder: Path, *, checksums: bool = True) -> Bundle:
        """Read a bundle's manifest and compare the folder's files with it.

        Args:
            folder: the bundle.
            checksums: compare every file's sha256, not only its size.

        Raises:
            ModelNotFoundError: the folder has no ``omnidraft.json``.
            DamagedFileError: it is damaged or was edited, it is of another schema version, or a
                file differs from it.
        """
        bundle = cls.read(folder)
        with reading(folder):
            bundle._check_files(folder, checksums)
        return bundle

    @classmethod
    def read(cls, folder: Path) -> Bundle:
        """Read a bundle's manifest alone.

        Raises:
            ModelNotFoundError, DamagedFileError: see ``load``.
        """
        path = folder / BUNDLE_FILE
        if not path.is_file():
            problem = f"is no bundle: it has no {BUNDLE_FILE}"
            if not folder.exists():
                problem = "does not exist"
            raise ModelNotFoundError(
                f"{folder} {problem}. Give a folder that `omnidraft export` wrote."
            )
        with reading(path):
            return _parse(read_bounded(path, LARGEST_JSON), path)

    def _check_files(self, folder: Path, checksums: bool) -> None:
        for name, entry in self.files.items():
            path = inside(folder, name)
            if not path.is_file():
                raise DamagedFileError(f"{path} is missing. Export the bundle again.")
            if (size := path.stat().st_size) != entry.size:
                raise DamagedFileError(
                    f"{path} has {size} bytes, {entry.size} expected. Export the bundle again."
                )
            if checksums and file_sha256(path) != entry.sha256:
                raise DamagedFileError(
                    f"{path} fails its checksum (sha256). Export the bundle again."
                )
        unlisted = {graph.file for graph in self.graphs} - self.files.keys()
        if unlisted:
            raise DamagedFileError(
                f"{folder / BUNDLE_FILE} names graphs that it lists no checksum for: "
                f"{', '.join(sorted(unlisted))}. Export the bundle again."
            )


# Opening a model asks for its engine first, then for all the rest.
@lru_cache(maxsize=1)
def _parse(content: bytes, path: Path) -> Bundle:
    try:
        values: Any = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is not JSON: {error}. Export it again.") from error
    version = values.get("schema_version") if isinstance(values, dict) else None
    if version != SCHEMA_VERSION:
        raise DamagedFileError(
            f"{path} has schema version {version!s:.60}, this program reads {SCHEMA_VERSION}. "
            "Update omnidraft if the bundle is newer, export it again if it is older."
        )
    digest = values.pop("digest", None)
    try:
        bundle = Bundle.model_validate(values)
    except ValidationError as error:
        raise DamagedFileError(f"{path} is damaged: {mistakes(error)}. Export it again.") from error
    if digest != _digest(values):
        raise DamagedFileError(
            f"{path} was edited since it was written (its digest differs). Export it again."
        )
    return bundle


def _digest(values: dict[str, Any]) -> str:
    """The sha256 of a manifest's canonical JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
