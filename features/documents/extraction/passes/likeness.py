"""Which worked examples a document is shown: those of the pool that it is most like.

Likeness is of words, with every digit the same: so documents of one form are alike, whatever is filled in. Knows no
schema and no prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from features.documents.extraction.passes.examples import MAX_EXAMPLES, Example

_WORD = re.compile(r"\w+|[^\w\s]")
_DIGIT = re.compile(r"\d")


def choose_examples(document_text: str, pool: Sequence[Example], *, count: int = MAX_EXAMPLES) -> tuple[Example, ...]:
    """Return the examples most like a document or an excerpt, never the document itself; in the order of the pool.

    That order, and not the one of likeness, lets prompts with some of the same examples begin alike.
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
    """Tell whether a text is another or an excerpt of it: all its paragraphs stand there."""
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    return bool(paragraphs) and all(part in whole for part in paragraphs)


def _overlap(ones: frozenset[str], others: frozenset[str]) -> float:
    """Return the words that both have as a share of those that either has (Jaccard)."""
    return len(ones & others) / len(ones | others) if ones or others else 0.0


@lru_cache(maxsize=4096)
def _words(text: str) -> frozenset[str]:
    return frozenset(_DIGIT.sub("0", word.casefold()) for word in _WORD.findall(text))
