"""How the byte-level tokenizers named in GGUF files split a text into words before pairs are merged.

The patterns are those of the models' own tokenizer.json; the names are llama.cpp's (llama-vocab.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """The rules behind the name of a pre-tokenizer."""

    patterns: tuple[str, ...]
    """Each splits the pieces left by those before it; unmatched text stays a word."""
    takes_whole_words: bool = False
    """A word that is in the vocabulary is one token, whatever the merges would give."""
    adds_bos: bool = False
    """The default if the file has no setting."""
    is_composed: bool = False
    """Whether texts are first normalized to Unicode's composed form (NFC)."""


_GPT2_WORDS = PreTokenizer(patterns=(_GPT2,))
_SINGLE_DIGITS = PreTokenizer(patterns=(r"\p{N}", _GPT2))
_LLAMA3 = PreTokenizer(patterns=(_ENDINGS + r"\p{N}{1,3}" + _REST,), takes_whole_words=True, adds_bos=True)
_LLAMA3_MERGED = PreTokenizer(patterns=_LLAMA3.patterns)
_QWEN2 = PreTokenizer(patterns=(_ENDINGS + r"\p{N}" + _REST,), is_composed=True)
_QWEN2_AS_GIVEN = PreTokenizer(patterns=_QWEN2.patterns)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "gpt-2": _GPT2_WORDS,
        "gigachat": _GPT2_WORDS,
        "mellum": _GPT2_WORDS,
        "trillion": _GPT2_WORDS,
        "smollm": _SINGLE_DIGITS,
        "starcoder": _SINGLE_DIGITS,
        "refact": _SINGLE_DIGITS,
        "minerva-7b": _SINGLE_DIGITS,
        "llama-bpe": _LLAMA3,
        "llama3": _LLAMA3,
        "llama-v3": _LLAMA3,
        "falcon3": _LLAMA3,
        "pixtral": _LLAMA3,
        "midm-2.0": _LLAMA3,
        "smaug-bpe": _LLAMA3_MERGED,
        "dbrx": _LLAMA3_MERGED,
        "qwen2": _QWEN2,
        "deepseek-r1-qwen": _QWEN2_AS_GIVEN,
        "megrez": _QWEN2_AS_GIVEN,
        "tekken": PreTokenizer(patterns=(_TEKKEN,), takes_whole_words=True, adds_bos=True),
        "deepseek-coder": PreTokenizer(
            patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")
        ),
    }
)
"""Pre-tokenizers of models that our decoder runs. A wrong one would split texts unlike the model's training."""
