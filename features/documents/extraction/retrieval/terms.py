"""Converts a text to search terms: lowercase words, stemmed in known languages, and pairs of characters of scripts that
put no spaces between words."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from itertools import pairwise

import regex

from features.documents.extraction.errors import RetrievalError
from features.documents.extraction.retrieval.stop_words import STOP_WORDS

SIMPLE = "simple"
"""Words without stemming: for unknown or mixed languages."""

_PARTS = regex.compile(r"[\p{L}\p{M}\p{N}]+")  # Indic and Thai vowels are marks
_WORD = regex.compile(rf"{_PARTS.pattern}(?:[.,'’]{_PARTS.pattern})*")
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_RUNS = regex.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|[^{_UNSPACED}]+")
_MAX_CHARACTERS = 64
"""Maximum length of a term: longer ones are cut, in texts and questions alike."""


class Analyzer:
    """Makes terms in one language: `simple`, or a language with a Snowball stemmer. Raises RetrievalError."""

    def __init__(self, language: str) -> None:
        self._stem: Callable[[list[str]], list[str]] | None = None if language == SIMPLE else _stemmer(language)
        self.language = language
        self._stop_words = STOP_WORDS.get(language, frozenset())

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text in order; `1,234.50` yields itself and its parts, `東京都` 東京 and 京都."""
        words: list[str] = []
        for word in _words(unicodedata.normalize("NFKC", text).lower()):
            if word in self._stop_words:
                continue
            words.append(word[:_MAX_CHARACTERS])
            if len(parts := _PARTS.findall(word)) > 1:
                words += (part[:_MAX_CHARACTERS] for part in parts)
        return words if self._stem is None else self._stem(words)


def _words(text: str) -> Iterator[str]:
    """Yield words, and of unspaced scripts each pair of characters that stand together, or a character on its own."""
    for word in _WORD.findall(text):
        if word.isascii():
            yield word
            continue
        for run in _RUNS.finditer(word):
            if run["unspaced"] is None:
                if rest := run[0].strip(".,'’"):
                    yield rest
            else:
                yield from map("".join, pairwise(run[0])) if len(run[0]) > 1 else run[0]


def _stemmer(language: str) -> Callable[[list[str]], list[str]]:
    import Stemmer  # noqa: PLC0415 - roles that only plan need not have it

    if language not in Stemmer.algorithms():
        languages = ", ".join([SIMPLE, *sorted(Stemmer.algorithms())])
        raise RetrievalError(f"the language {language!r} is not known; give one of {languages}.")
    stem: Callable[[list[str]], list[str]] = Stemmer.Stemmer(language).stemWords
    return stem
