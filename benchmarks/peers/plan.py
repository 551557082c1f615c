"""What is compared: engines, their methods, and the settings among which each may choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Setting = dict[str, Any]
PLAIN = "plain"


@dataclass(frozen=True)
class Method:
    """A way to decode; of several settings the fastest on the tuning prompts is measured."""

    name: str
    settings: tuple[Setting, ...] = ({},)
    unavailable: str = ""
    """Why it cannot be measured, if it cannot."""


@dataclass(frozen=True)
class Contestant:
    """An engine at a precision, with some of its methods; it gets a process of its own."""

    engine: str
    precision: str
    module: str
    """Of the worker, in this folder."""
    install: str
    """How to get the engine where it is missing."""
    methods: tuple[Method, ...] = field(default=())

    @property
    def name(self) -> str:
        return f"{self.engine} {self.precision}"


def contestants(
    *,
    draft_lengths: Sequence[int | str],
    adapter: str | None,
    gguf_type: str | None,
    sampling: bool,
) -> list[Contestant]:
    """Everyone, whether installed or not.

    Args:
        draft_lengths: OmniDraft's, each a method of its own: they are not tuned.
        adapter: OmniDraft is measured with this adapter too.
        gguf_type: the type of the target's GGUF file, such as Q4_1; None if it is none.
        sampling: temperature above 0.
    """
    omnidraft = [Method("omnidraft", ({"draft_length": length},)) for length in draft_lengths]
    if adapter:
        omnidraft += [
            Method("omnidraft adapted", ({"draft_length": length, "adapter": adapter},))
            for length in draft_lengths
        ]
    lookup = tuple({"draft_length": length} for length in (2, 4, 8))
    drafted = tuple(
        {"draft_length": length, "confidence": confidence}
        for length, confidence in ((2, 0.0), (4, 0.0), (4, 0.4), (8, 0.4), (20, 0.4))
    )
    re_encoding = "transformers uses its token-level intersection instead when it samples"
    transformers = (
        Method(PLAIN),
        Method("prompt lookup", lookup),
        Method("re-encoding", drafted, re_encoding if sampling else ""),
        Method("intersection", drafted[1:4]),
    )
    genai = (
        Method(PLAIN),
        Method("n-gram lookup", _genai_lookups()),
        Method(
            "draft model",
            unavailable="onnxruntime-genai demands that target and drafter share a vocabulary",
        ),
    )
    no_gguf = "" if gguf_type else "llama.cpp reads GGUF files only"
    ngrams = tuple(
        {"ngram_size": n, "draft_length": k} for n, k in ((2, 2), (3, 4), (3, 8), (12, 48))
    )
    llama_plain = Method(PLAIN, unavailable=no_gguf)
    llama_drafted = Method("draft model", drafted, no_gguf)
    llama_lookups = (
        *(Method(name, ngrams, no_gguf) for name in ("n-gram simple", "n-gram map", "n-gram mod")),
        Method("n-gram cache", unavailable=no_gguf),
    )
    # Plainly in the types that it was made faster for, and in the file's own. What looks n-grams up
    # runs in the fastest. The drafter is seen to be no use in one.
    llama: dict[str, tuple[Method, ...]] = {
        "Q8_0": (llama_plain,),
        "Q4_0": (llama_plain, *llama_lookups),
    }
    own = gguf_type or "GGUF"
    llama[own] = (*llama.get(own, (llama_plain,)), llama_drafted)
    return [
        *(
            Contestant("omnidraft", precision, "omnidraft_worker", "make demo", methods)
            for precision in ("auto", "8bit", "4bit")
            for methods in ((Method(PLAIN), *omnidraft),)
        ),
        *(
            Contestant(
                "transformers",
                precision,
                "transformers_worker",
                "pip install torch transformers accelerate",
                transformers,
            )
            for precision in ("float32", "bfloat16")
        ),
        Contestant(
            "onnxruntime-genai",
            "int4",
            "genai_worker",
            "pip install onnxruntime-genai torch transformers accelerate",
            genai,
        ),
        *(
            # A process for each method: a server drafts in one way, and several disturb each other.
            Contestant("llama.cpp", kind, "llamacpp_worker", "pip install xllamacpp", (method,))
            for kind, methods in llama.items()
            for method in methods
        ),
    ]


def _genai_lookups() -> tuple[Setting, ...]:
    """All that onnxruntime-genai's lookup can be told: fixed lengths, and lengths that adapt."""
    fixed = [{"ngram_size": n, "draft_length": k} for n in (2, 3, 4) for k in (2, 4, 8)]
    chained = [
        {"ngram_size": n, "draft_length": k, "chained": True} for n, k in ((3, 4), (3, 8), (4, 8))
    ]
    adaptive = [
        {"ngram_size": n, "least_length": k, "chained": chain}
        for n, k, chain in ((2, 1, False), (3, 1, False), (3, 2, False), (3, 2, True), (4, 2, True))
    ]
    cooling = [{**each, "cooldown": True} for each in (fixed[0], fixed[4], adaptive[1])]
    return (*fixed, *chained, *adaptive, *cooling)
