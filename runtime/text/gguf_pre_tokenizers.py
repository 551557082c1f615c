"""How byte-level tokenizers of GGUF files split text before BPE, by the names in such files."""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"
_TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD_START = r"[^\r\n\p{L}\p{N}]?"
_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|{_WORD_START}[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
)
_CASED_TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
_TEKKEN = rf"{_WORD_START}{_UPPER}*{_LOWER}+|{_WORD_START}{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_TAIL}"


def _cased(digits: str) -> str:
    return (
        rf"{_WORD_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD_START}{_UPPER}+{_LOWER}*"
        rf"{_CONTRACTIONS}?|{digits}|{_CASED_TAIL}"
    )


_GPT4O = _cased(r"\p{N}{1,3}")
_DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
)
# Letters of scripts that have two cases, as DeepSeek's first tokenizer lists them.
_TWO_CASES = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_IDEOGRAPHS = "[一-龥\u0800-一가-\ud7ff]+"
_KANA = "[一-龥\u3040-\u309f\u30a0-\u30ff]+"
_DOUBLED_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))


@dataclass(frozen=True)
class PreTokenizer:
    """What ``tokenizer.ggml.pre`` stands for.

    Attributes:
        expressions: regular expressions, each of which splits what those before it left.
        whole_words: a word that is a token is taken whole, whatever the merges.
        begins: a text begins with the BOS token where the file does not say.
        composes: text is brought into Unicode's composed form (NFC) first.
        guessed: a converter did not know the tokenizer.
    """

    expressions: tuple[str, ...]
    whole_words: bool = False
    begins: bool = False
    composes: bool = False
    guessed: bool = False


_DEFAULT = PreTokenizer(
    (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"), guessed=True
)


def _named(names: str, *expressions: str, **flags: bool) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names.split(), PreTokenizer(expressions, **flags))


PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    **_named(
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum", _GPT2
    ),
    **_named(
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", r"\p{N}", _GPT2
    ),
    **_named(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        _LLAMA3,
        whole_words=True,
        begins=True,
    ),
    **_named("dbrx smaug-bpe glm4 chatglm-bpe", _LLAMA3),
    **_named(
        "jais-2",
        _LLAMA3.removesuffix(_SPACES) + _DOUBLED_SPACES + r"|\s{1,2}(?!\S)|\s",
    ),
    **_named("minicpm5", r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+"), whole_words=True),
    **_named("stablelm2 hunyuan deepseek-r1-qwen megrez kormo f2llmv2 solar-open grok-2", _QWEN2),
    **_named("qwen2", _QWEN2, composes=True),
    **_named("qwen35", _QWEN35, composes=True),
    **_named(
        "seed-coder",
        rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+"
        rf"|{_SPACES}",
    ),
    **_named(
        "bailingmoe bailingmoe2 llada-moe",
        rf"'(?i:[sdmt]|ll|ve|re)|{_WORD_START}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
        rf"|\s*[\r\n]|{_SPACES}",
    ),
    **_named(
        "exaone-moe",
        rf"{_CONTRACTIONS}|{_WORD_START}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}",
    ),
    **_named("tekken", _TEKKEN, whole_words=True, begins=True),
    **_named("gpt-4o llama4 kanana2 talkie minimax-m2", _GPT4O, whole_words=True),
    **_named("tiny_aya cohere2moe", r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O),
    **_named(
        "youtu",
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _KANA,
        _cased(r"\p{N}"),
        whole_words=True,
    ),
    **_named("deepseek-v3 hunyuan-dense joyai-llm", r"\p{N}{1,3}", _KANA, _DEEPSEEK_V3),
    **_named("deepseek-coder", r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAPHS, r"\p{N}"),
    **_named(
        "deepseek-llm",
        r"[\r\n]",
        rf"\s?[{_TWO_CASES}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _IDEOGRAPHS,
        r"\p{N}+",
    ),
    **_named("falcon", r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    **_named("poro-chat bloom gpt3-finnish", r" ?[^(\s|.,!?…。，、।۔،)]+"),
    **_named("viking", r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"),
}
