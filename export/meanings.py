"""What inputs and outputs of exported graphs hold, and how the graphs are stepped, in words.

The manifest, the ONNX files and a bundle's README say these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Meanings = Mapping[str, str]
"""By a tensor's name, a layer's number in it as ``#``; ``lora.`` and ``grad.lora.`` need none."""

_LOGITS = "unnormalised log-probabilities of the token that follows each row's"
_HIDDEN = "what the head reads of each row: the normed hidden state"
_KEY, _VALUE = "rotated keys of layer #", "values of layer #"

ONNX: Meanings = {
    "tokens": "ids of this pass's n tokens, which follow those in the KV cache",
    "last_position": "the pass's last token in the text, counted from 0: tokens cached + n - 1",
    "total_length": "tokens in the KV cache after the pass: last_position + 1",
    "first_row": "logits and hidden are computed from this row on: 0 for all, n - 1 for the last",
    "past.#.key": f"{_KEY}; what lies behind the tokens cached is not read",
    "past.#.value": f"{_VALUE}, likewise",
    "logits": _LOGITS,
    "hidden": _HIDDEN,
    "present.#.key": "past.#.key with the pass's tokens",
    "present.#.value": "past.#.value with the pass's tokens",
}
ONNX_USAGE = (
    "A pass takes any number of tokens. Give each past.* zeros of float32 [1, kv_heads, capacity, "
    "head_size], capacity being the longest text that is wanted, at most the context length; after "
    "a pass give present.* back as past.*, or bind both to the same memory, which copies nothing. "
    "Beginning with a capacity of 0, present.* grows with the text instead. To drop the last "
    "tokens, count fewer of them in the next pass, and cut a cache that grows to what is kept. "
    "LoRA inputs, where there are any, may be left out: that is the base model."
)

GENAI: Meanings = {
    "input_ids": "ids of this pass's tokens, which follow those in the KV cache",
    "attention_mask": "ones, one for each token in the KV cache and in this pass",
    "position_ids": "place of each token in the text, counted from 0",
    "past_key_values.#.key": f"{_KEY}; what lies behind the tokens cached is not read",
    "past_key_values.#.value": f"{_VALUE}; what lies behind the tokens cached is not read",
    "logits": _LOGITS,
    "present.#.key": "past_key_values.#.key with the pass's tokens",
    "present.#.value": "past_key_values.#.value with the pass's tokens",
}
GENAI_USAGE = (
    "As transformers, optimum and onnxruntime-genai name and step it, for one text at a time; "
    "genai_config.json and config.json lie beside it. Give present.* back as past_key_values.*. "
    "These may begin with no token and grow, or be one buffer as long as the longest text that is "
    "wanted, at most the context length, which past and present share. To drop the last tokens, "
    "make the mask shorter, and cut a cache that grows to what is kept. LoRA inputs, where there "
    "are any, may be left out: that is the base model."
)

OWN: Meanings = {
    **{name: ONNX[name] for name in ("tokens", "first_row", "logits", "hidden")},
    "positions": "place of each token in its text, counted from 0",
    "paths": "of nodes of a tree: the cache's slots beyond the text that each sees, in order, its "
    "own last, then -1; depth 0: there is no tree",
    "past.#.key": f"{_KEY}, in tiles; what lies behind the tokens cached is not read",
    "past.#.value": f"{_VALUE}; what lies behind the tokens cached is not read",
    "present.#.key": "past.#.key with the pass's tokens, in the same memory",
    "present.#.value": "past.#.value with the pass's tokens, in the same memory",
}
OWN_USAGE = (
    "This graph is for OmniDraft alone: its operators are the package's own (domain omnidraft). "
    "Give each past.* a prefix of a buffer, a multiple of 96 tokens long, and bind present.* to "
    "the same memory. To drop the last tokens, count fewer of them in the next pass."
)

STATIC: Meanings = {
    "tokens": "ids of the pass's tokens, which follow those in the KV cache; anything behind the "
    "last of them",
    "positions": "place of each token in the text, counted from 0",
    "mask": "added to attention's scores: 0.0 where a row may see a column, -100.0 elsewhere. "
    "Columns are the cache's, then the pass's own. In integers: the largest where it may, else 0",
    "past.#.key": f"{_KEY}; columns that the mask hides are not read",
    "past.#.value": f"{_VALUE}; rows that the mask hides are not read",
    "logits": _LOGITS,
    "hidden": _HIDDEN,
    "present.#.key": "keys of the pass's own tokens, to be put into past.#.key behind those cached",
    "present.#.value": "values of the pass's own tokens, to be put into past.#.value likewise",
}
STATIC_USAGE = (
    "Every pass takes the same number of tokens; with fewer, the rows behind the last are of no "
    "use. The caller keeps the KV cache: give past.* zeros of their shape at first, and after a "
    "pass copy the columns of present.* that belong to its tokens into past.* behind those cached "
    "(integers as they are). A row sees the columns of what is cached and, of the pass's own, "
    "those up to itself. To drop the last tokens, count fewer of them: the mask then hides them."
)

EXECUTORCH: Meanings = {
    "tokens": "ids of the pass's tokens",
    "positions": "place of each token in the text, counted from 0, and its slot of the KV cache",
    "mask": "added to attention's scores: 0 where a row may see a slot of the KV cache, -inf "
    "elsewhere; its width is how many slots are read",
    "logits": _LOGITS,
}
EXECUTORCH_USAGE = (
    "The KV cache is in the program and holds the context length. A pass writes its tokens' keys "
    "and values at their positions and reads as many slots as the mask is wide. For tokens behind "
    "L cached ones give positions L, L + 1, … and a mask of L + T columns in which row t sees the "
    "columns up to L + t. To drop the last tokens, use their positions again. LoRA inputs have no "
    "default and no rank of 0: for the base model give zeros of rank 1."
)
CHIP_USAGE = (
    f"{EXECUTORCH_USAGE} Every pass is of the same size: the mask covers the whole context, LoRA "
    "inputs have their full rank, and rows that are not needed have the position behind the last."
)

RUNNER: Meanings = {
    "tokens": "ids of the pass's tokens, which follow those in the KV cache",
    "input_pos": "place of the first of them in the text, counted from 0",
    "logits": _LOGITS,
}
RUNNER_USAGE = (
    "As ExecuTorch's LLM runners call a model. The KV cache is in the program and holds the "
    "context length (get_max_context_len); a pass takes at most get_max_seq_len tokens and writes "
    "their keys and values from input_pos on. To drop the last tokens, begin at their place again. "
    "A runner puts the token that begins a text there only where it is told to (num_bos = 1). "
    "There is no LoRA here: the base model answers."
)

TRANSFORMERS_USAGE = (
    "Weights of a Llama in this folder, which transformers loads: "
    "AutoModelForCausalLM.from_pretrained(folder) and AutoTokenizer.from_pretrained(folder). It "
    "drafts for a target of another vocabulary where that one's generate() gets it as "
    "assistant_model, with tokenizer and assistant_tokenizer. No space stands in front of a text."
)
GGUF_USAGE = (
    "For llama.cpp, as a model (--model) or as the draft model of another (--model-draft). The "
    "tokenizer is in the file. No space stands in front of a text."
)

TRAINING: Meanings = {
    "tokens": "ids of a text",
    "positions": "place of each token in the text, counted from 0",
    "mask": "added to attention's scores: 0 where a row may see a token, -inf elsewhere",
    "rows": "places in the text whose next-token distributions carry loss",
    "direct_ids": "tokens of a row's distribution that the target says something of; -1: none",
    "direct_log_p": "the target's log-probabilities of what these tokens stand for",
    "direct_weight": "weight of each row's KL divergence from the target",
    "direct_tokens": "1 for the tokens over which the row is renormalised, 0 for others",
    "label": "token whose log-probability a row is rewarded for",
    "label_weight": "weight of that",
    "chunks": "1 where a row's label belongs to a chunk",
    "chunk_log_p": "the target's log-likelihood of each chunk",
    "chunk_weight": "weight of each chunk's binarised divergence",
    "merged": "1 where a chunk is one more outcome of a row's distribution",
    "temperature": "the chunks' divergence is of likelihoods to the power 1 / temperature",
    "loss": "what is differentiated",
    "direct_loss": "the part of the loss that direct_weight weighs",
    "label_loss": "the part of the loss that label_weight weighs",
    "chunk_loss": "the part of the loss that chunk_weight weighs",
    "kl": "each row's KL divergence, without its weight",
    "log_label": "log-probability of each row's label",
    "chunk_divergence": "each chunk's divergence, without its weight",
    "hidden": "what the head reads of each row: the normed hidden state",
    "best": "each row's likeliest token",
}
TRAINING_USAGE = (
    "One step: from a text, what the target said of it and the LoRA weights, the loss and its "
    "gradient by each LoRA input. It keeps nothing; the caller's optimizer makes the new weights."
)


def meaning(name: str, meanings: Meanings) -> str:
    """What an input or output of that name holds.

    Raises:
        KeyError: nothing is said of it.
    """
    if name.startswith("grad."):
        return f"gradient of the loss by {name.removeprefix('grad.')}"
    if found := re.fullmatch(r"lora\.(\d+)\.(\w+)\.([AB])", name):
        layer, linear, factor = found.groups()
        if factor == "B":
            return f"the second LoRA factor of layer {layer}'s {linear}"
        return (
            f"the first LoRA factor of layer {layer}'s {linear}, whose output grows by (x @ A) @ B"
        )
    number = re.search(r"(?<=\.)\d+(?=\.)", name)
    if number is None:
        return meanings[name]
    general = f"{name[: number.start()]}#{name[number.end() :]}"
    return meanings[general].replace("#", number[0])
