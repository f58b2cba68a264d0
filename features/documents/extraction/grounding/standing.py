"""Tells whether a value occurs in a text, in more forms than `ValueTarget` locates.

A value that occurs in none of these forms was not copied from the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

from features.documents.extraction.fields.dates import DATE, is_surely
from features.documents.extraction.fields.leaf import Kind
from features.documents.extraction.fields.numbers import CURRENCY_CODES, MULTIPLIED, MULTIPLIERS, currency
from features.documents.extraction.fields.values import is_same, normal_text
from features.documents.extraction.grounding.values import ValueTarget

_NUMBER = re.compile(rf"(?<![\d.,{MULTIPLIERS}])(?:(?<!\w)[-+−–]\s?)?\d(?:[\d.,'’]*\d)?(?!\d){MULTIPLIED}(?:\s?%)?")
"""A number, even if letters or brackets touch it, as in `12pcs`, `(3)` or `19 %`."""
_SIGNS = re.compile(r"[\W_]+")
_AROUND_WORD = re.compile(r"^[\W_]+|[\W_]+$")
_LETTERS = re.compile(r"[^\W\d_]+")
_LEAST_JOINED, _LEAST_DIGITS = 3, 6
"""Minimum letters and digits, or digits alone, of a text that may be interrupted by blanks and signs: an IBAN, a phone
number. Fewer digits may be adjacent by chance."""
_MOST_BETWEEN = 2
_MOST_LINES = 3
"""Maximum lines over which a text may continue beside other words: a table cell, an address."""
_DOLLARS = frozenset({"AUD", "CAD", "HKD", "NZD", "SGD", "USD"})


class Standing:
    """A text in which values are searched; its contents are analysed on first use."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.target = ValueTarget(text)

    def has(self, value: Any, kind: Kind) -> bool:
        """Tell whether the text contains a value in any form; False for null, true and false."""
        if value is None or isinstance(value, bool) or kind is Kind.BOOLEAN:
            return False
        if self.target.candidates(value, kind).spans:
            return True
        if kind is Kind.TEXT and isinstance(value, str):
            return self._has_text(value)
        return kind is not Kind.DATE and self._has_number(value, kind)

    def has_words(self, quote: str) -> bool:
        """Tell whether the text contains these words after normalisation."""
        words = normal_text(quote)
        return bool(words) and words in self._plain

    def _has_number(self, value: Any, kind: Kind) -> bool:
        return any(is_same(value, written, kind) for written in self._numbers)

    def _has_text(self, value: str) -> bool:
        if DATE.fullmatch(value.strip()) and self.target.candidates(value, Kind.DATE).spans:
            return True
        if CURRENCY_CODES.issuperset(_LETTERS.findall(value)) and self._has_number(value, Kind.MONEY):
            return True
        return self._has_currency(value.strip().upper()) or self._has_joined(value) or self._goes_on(_words(value))

    def _has_currency(self, code: str) -> bool:
        """Tell whether the text contains a currency code as sign or name."""
        if code not in CURRENCY_CODES:
            return False
        return (code in _DOLLARS and "$" in self.text) or any(currency(word) == code for word in self.text.split())

    def _has_joined(self, value: str) -> bool:
        joined = _SIGNS.sub("", _folded(value))
        if len(joined) < (_LEAST_DIGITS if joined.isdigit() else _LEAST_JOINED):
            return False
        spelled = rf"(?:[^\w.,]|_){{0,{_MOST_BETWEEN}}}".join(map(re.escape, joined))
        return re.search(rf"(?<![^\W_]){spelled}(?![^\W_])", self._folded) is not None

    def _goes_on(self, words: Sequence[str]) -> bool:
        """Tell whether words continue from a line to the lines below, in order."""
        return len(words) > 1 and any(
            _follow(words, self._lines[number : number + _MOST_LINES]) for number in range(len(self._lines))
        )

    @cached_property
    def _plain(self) -> str:
        return normal_text(self.text)

    @cached_property
    def _folded(self) -> str:
        return _folded(self.text)

    @cached_property
    def _numbers(self) -> frozenset[str]:
        """Return everything that may be a number, except days and months of dates."""
        undated = DATE.sub(lambda date: _year(date.group()) if is_surely(date) else date.group(), self.text)
        return frozenset(match.group() for match in _NUMBER.finditer(undated))

    @cached_property
    def _lines(self) -> list[list[str]]:
        return [_words(line) for line in self.text.splitlines() if line.strip()]


def _follow(words: Sequence[str], lines: Sequence[Sequence[str]]) -> bool:
    for line in lines:
        words = words[_num_first(words, line) :]
        if not words:
            return True
    return False


def _num_first(words: Sequence[str], line: Sequence[str]) -> int:
    """Return how many of the first words occur consecutively in a line."""
    starts = (start for start, word in enumerate(line) if word == words[0])
    return max((_num_same(words, line[start:]) for start in starts), default=0)


def _num_same(ones: Sequence[str], others: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ones, others, strict=False)))


def _year(date: str) -> str:
    match = re.search(r"\d{4}", date)
    return " " if match is None else f" {match.group()} "


def _words(text: str) -> list[str]:
    """Return the words between blanks, without surrounding signs: a date is one word."""
    stripped = (_AROUND_WORD.sub("", word) for word in _folded(text).split())
    return [word for word in stripped if word]


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()
