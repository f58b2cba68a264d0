"""Converts a text to search terms: lowercase words, stemmed in known languages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from features.documents.extraction.errors import RetrievalError
from features.documents.extraction.retrieval.stop_words import STOP_WORDS

SIMPLE = "simple"
"""Words without stemming: for unknown or mixed languages."""

_WORD = re.compile(r"[^\W_]+(?:[.,'’][^\W_]+)*")
_PARTS = re.compile(r"[^\W_]+")
_MAX_CHARACTERS = 64
"""Maximum length of a term: longer ones are cut, in texts and questions alike."""


class Analyzer:
    """Makes terms in one language: `simple`, or a language with a Snowball stemmer. Raises RetrievalError."""

    def __init__(self, language: str) -> None:
        self._stem: Callable[[list[str]], list[str]] | None = None if language == SIMPLE else _stemmer(language)
        self.language = language
        self._stop_words = STOP_WORDS.get(language, frozenset())

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text in order; `1,234.50` yields itself and its parts."""
        words: list[str] = []
        for word in _WORD.findall(unicodedata.normalize("NFKC", text).lower()):
            if word in self._stop_words:
                continue
            words.append(word[:_MAX_CHARACTERS])
            if not word.isalnum():
                words += (part[:_MAX_CHARACTERS] for part in _PARTS.findall(word))
        return words if self._stem is None else self._stem(words)


def _stemmer(language: str) -> Callable[[list[str]], list[str]]:
    import Stemmer  # noqa: PLC0415 - roles that only plan need not have it

    if language not in Stemmer.algorithms():
        languages = ", ".join([SIMPLE, *sorted(Stemmer.algorithms())])
        raise RetrievalError(f"the language {language!r} is not known; give one of {languages}.")
    stem: Callable[[list[str]], list[str]] = Stemmer.Stemmer(language).stemWords
    return stem
