"""Chooses worked examples for a document: the most similar ones of the pool.

Similarity compares words, with all digits equal: documents with the same form are similar, whatever is filled in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from features.documents.extraction.passes.examples import MAX_EXAMPLES, Example

_WORD = re.compile(r"\w+|[^\w\s]")
_DIGIT = re.compile(r"\d")


def choose_examples(document_text: str, pool: Sequence[Example], *, count: int = MAX_EXAMPLES) -> tuple[Example, ...]:
    """Return the examples most similar to a document or excerpt, never the document itself; in the order of the pool.

    That order, instead of similarity, gives prompts with common examples a common prefix.
    """
    own = _words(document_text)
    likeness = {
        index: _overlap(own, _words(example.document_text))
        for index, example in enumerate(pool)
        if not _is_part(document_text, example.document_text)
    }
    chosen = sorted(likeness, key=lambda index: (-likeness[index], index))[:count]
    return tuple(pool[index] for index in sorted(chosen))


def _is_part(text: str, whole: str) -> bool:
    """Tell whether a text equals another or is an excerpt of it: all its paragraphs occur there."""
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    return bool(paragraphs) and all(part in whole for part in paragraphs)


def _overlap(ones: frozenset[str], others: frozenset[str]) -> float:
    """Return the number of shared words as a share of all words of both (Jaccard)."""
    return len(ones & others) / len(ones | others) if ones or others else 0.0


@lru_cache(maxsize=4096)
def _words(text: str) -> frozenset[str]:
    return frozenset(_DIGIT.sub("0", word.casefold()) for word in _WORD.findall(text))
