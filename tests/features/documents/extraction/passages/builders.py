"""Tokenizers for tests that count, and texts with headings."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import cache

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from features.documents.extraction.documents.document import Heading
from lab.extraction.alignment import generated_text

_TOKEN = re.compile(r"\w{1,4}|[^\w\s]")


def count(text: str) -> int:
    """Return the number of tokens in a text: up to four letters each, or a sign."""
    return len(_TOKEN.findall(text))


def with_headings(parts: Sequence[str]) -> tuple[str, list[Heading]]:
    """Return a text of Markdown's parts, and its headings without their signs."""
    text, headings = "", []
    for part in parts:
        level = len(part) - len(part.lstrip("#"))
        content = part.lstrip("# ")
        if level:
            headings.append(Heading(start=len(text), end=len(text) + len(content), level=level))
        text += content + "\n\n"
    return text, headings


@cache
def byte_tokenizer() -> bytes:
    """Return a tokenizer of pairs of bytes, whose file also shortens texts and puts special tokens around them."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([generated_text(random.Random(0))], trainer)
    return _as_models_have(made, "<s>")


@cache
def word_tokenizer() -> bytes:
    """Return a tokenizer of lower-cased words and their parts, to which an unknown word of any length is a token."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[UNK]", "[CLS]"], show_progress=False)
    made.train_from_iterator([generated_text(random.Random(0))], trainer)
    return _as_models_have(made, "[CLS]")


def _as_models_have(made: Tokenizer, special: str) -> bytes:
    pair = [(special, made.token_to_id(special))]
    made.post_processor = processors.TemplateProcessing(single=f"{special} $A {special}", special_tokens=pair)
    made.enable_truncation(8)
    made.enable_padding(length=8)
    return str(made.to_str()).encode()
