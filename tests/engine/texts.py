"""Tokenizers whose tokens split characters, and text pushed through the engine's streams a token at a time."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from engine.text import Detokenizer, StopMatcher

SAMPLES = [
    "plain words, with punctuation.",
    "emoji 😀👩‍👩‍👧 and flags 🇩🇪",
    "漢字とかな、中文字符，한국어",
    "mixed é à ü ß 😀漢x",
    "a\n\n  indented\ttabs",
]


def byte_level() -> Tokenizer:
    """One token per byte, as GPT-2's alphabet writes them; no merges, so every character outside ASCII is split."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Llama's form: known letters are tokens, everything else falls back to byte tokens."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for letter in "▁abcdefghijklmnopqrstuvwxyz.,":
        vocab[letter] = len(vocab)
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


TOKENIZERS = {"byte-level": byte_level(), "byte-fallback": byte_fallback()}


def stream_text(tokenizer: Tokenizer, prompt: list[int], output: list[int]) -> str:
    detokenizer = Detokenizer(tokenizer, prompt)
    pieces = [detokenizer.push([token]) for token in output]
    return "".join([*pieces, detokenizer.finish()])


def match(stops: list[str], pieces: list[str], *, include_stop: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include_stop=include_stop)
    shown = "".join([matcher.push(piece) for piece in pieces])
    return shown + matcher.finish(), matcher.matched
