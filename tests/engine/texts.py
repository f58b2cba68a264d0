"""Small versions of common models' tokenizers, and text pushed through the engine's streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from engine.detokenizer import Detokenizer
from engine.text import StopMatcher

SAMPLES = [
    "plain words, with punctuation.",
    "emoji 😀👩‍👩‍👧 and flags 🇩🇪",
    "漢字とかな、中文字符，한국어",
    "mixed é à ü ß 😀漢x",
    "a\n\n  indented\ttabs",
]

_SPECIAL = [AddedToken(text, special=True) for text in ("<s>", "</s>", "<|end|>")]
_ADDED = [AddedToken("<tool>", special=False), AddedToken("\ufffd", special=False)]


def byte_level(*added: AddedToken) -> Tokenizer:
    """One token per byte, as GPT-2's alphabet writes them; no merges, so every character outside ASCII is split."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(list(added))
    return tokenizer


def straddling() -> Tokenizer:
    """Byte-level, with tokens that end one character and begin the next, as large vocabularies have them."""
    vocab = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for word in ("Ġthe", "¢æ", "Ģðŀ", "æ¼", "æ¼¢æ", "¼¢"):
        vocab.setdefault(word, len(vocab))
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([*_SPECIAL, *_ADDED])
    return tokenizer


def byte_fallback(decoder: decoders.Decoder | None = None, *added: AddedToken) -> Tokenizer:
    """SentencePiece's form: known letters and words are tokens, everything else falls back to byte tokens."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for piece in [*"▁abcdefghijklmnopqrstuvwxyz.,漢", "▁engine", "▁prompt", "▁▁", "ing"]:
        vocab[piece] = len(vocab)
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.pre_tokenizer = None
    plain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoder or decoders.Sequence(plain)
    tokenizer.add_tokens(list(added))
    return tokenizer


def llama_2() -> Tokenizer:
    """As Llama 2, TinyLlama, Yi, Mistral and Phi-3 decode: a space is stripped from the beginning of a text."""
    stripping = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return byte_fallback(decoders.Sequence(stripping), *_SPECIAL, *_ADDED)


def metaspace() -> Tokenizer:
    """As T5's and XLNet's SentencePiece models decode, byte fallback before it."""
    first = decoders.Metaspace(replacement="▁", prepend_scheme="first")
    return byte_fallback(decoders.Sequence([decoders.ByteFallback(), first]), *_SPECIAL, *_ADDED)


TOKENIZERS = {"byte-level": byte_level(), "byte-fallback": byte_fallback()}

ALL_TOKENIZERS = {
    "byte-level": byte_level(*_SPECIAL, *_ADDED),
    "straddling": straddling(),
    "byte-fallback": byte_fallback(None, *_SPECIAL, *_ADDED),
    "llama-2": llama_2(),
    "metaspace": metaspace(),
}
"""With special tokens, tokens that are added without being special, and a token that is the replacement character."""


def ids_of(kind: str, *spelled: str) -> list[int]:
    """Return the ids of tokens as the vocabulary spells them, of those that it has."""
    return [one for one in map(ALL_TOKENIZERS[kind].token_to_id, spelled) if one is not None]


def stream_text(tokenizer: Tokenizer, prompt: list[int], output: list[int], *, skip: bool = True) -> str:
    return pieces_text(tokenizer, prompt, [[token] for token in output], skip=skip)


def pieces_text(
    tokenizer: Tokenizer, prompt: Sequence[int], pieces: Iterable[Sequence[int]], *, skip: bool = True
) -> str:
    detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=skip)
    return "".join([*[detokenizer.push(piece) for piece in pieces], detokenizer.rest()])


def match(stops: list[str], pieces: list[str], *, include_stop: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include_stop=include_stop)
    shown = "".join([matcher.push(piece) for piece in pieces])
    return shown + matcher.finish(), matcher.matched
