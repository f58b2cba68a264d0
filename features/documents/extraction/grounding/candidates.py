"""All possible places of a quote, found by the strictest method that succeeds.

The methods: exact, normalised, by letters and digits only, fuzzy. A quote must not begin or end inside a number, which
includes its minus sign, nor, if it is short, inside a word. `ordering.py` chooses between several places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rapidfuzz import fuzz
from rapidfuzz.distance import Indel, Levenshtein

from features.documents.extraction.grounding.normalised import THOUSANDS, Target
from features.documents.extraction.grounding.spans import Span, Status

MIN_LIKENESS = 0.8
"""Minimum similarity of a fuzzy match: the share of common characters in order (rapidfuzz: Indel similarity)."""

_MIN_INSIDE_WORD = 4
"""Minimum length of a quote that may begin or end inside a word."""
_MIN_LETTERS = 3
"""Minimum letters of a quote for a fuzzy match. All its digits must match: a different number is another number."""
_MIN_MISSPELLED, _A_WRONG_LETTER = 3, 8
"""Minimum letters of a word with a wrong letter, and letters of a longer one for each further wrong letter."""
_WORD = re.compile(r"\w+|&")
_ANDS = frozenset({"&", "and", "und", "et", "y", "e", "en"})
"""The sign is the same word as its spellings."""
_MAX_SEEDS = 6
_MAX_PLACES_OF_A_SEED = 40
_MAX_REFINED = 6
"""Maximum number of characters by which either end of a fuzzy match is moved to fit best."""
_FAR_EAST = "\u2e80"
"""Characters from here on belong to scripts without spaces between words."""
_AMID_DIGITS = rf"(?<=\d)(?:\d|[.,]\d|[{THOUSANDS}]\d{{3}}(?!\d))|(?<=\d[.,])\d|(?<=\d[{THOUSANDS}])\d{{3}}(?!\d)"
_NOT_BEFORE_MINUS = r"[^\s(\[{€$£¥:=|]"
"""After these characters a dash joins or separates, as in `Invoice-4711` and `5-7`, and is no minus sign."""
_BEHIND_MINUS = rf"(?<=[-−–])(?<!{_NOT_BEFORE_MINUS}[-−–])\d"
_LAST_MINUS = r"(?<=[.,]\d\d)[-−–](?![\w-])"
"""After an amount, as in accounting."""
_AMID_NUMBER = re.compile(f"{_AMID_DIGITS}|{_BEHIND_MINUS}|{_LAST_MINUS}")
_FIGURES = re.compile(rf"\d|(?<!{_NOT_BEFORE_MINUS})-(?=\d)|{_LAST_MINUS}")
"""The characters that make up the numbers of a plain text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Possible places of a quote, in text order."""

    status: Status = Status.NONE
    spans: tuple[Span, ...] = ()
    likeness: float = 0.0


NO_CANDIDATES = Candidates()


def candidates(quote: str, target: Target, *, is_value: bool = False) -> Candidates:
    """Return the places of a quote, found by the strictest method that finds any.

    A value (`is_value`) is nearly at a place only word by word: one with another word is another name.
    """
    quote = quote.strip()
    if not quote:
        return NO_CANDIDATES
    if exact := tuple(_whole(quote, target.text)):
        return Candidates(status=Status.EXACT, spans=exact, likeness=1.0)
    own = Target(quote)
    plain = own.plain.strip()
    if normalised := tuple(Span(*target.from_plain(*span)) for span in _places(plain, target.plain)):
        return Candidates(status=Status.NORMALISED, spans=normalised, likeness=1.0)
    spelled = _by_letters(own.squeezed, plain, target)
    if spelled or sum(sign.isalpha() for sign in plain) < _MIN_LETTERS:
        return _likely(plain, target, spelled)
    near = _nearly(plain, target)
    return _likely(plain, target, [place for place in near if not is_value or _has_same_words(plain, target, place)])


def _whole(quote: str, text: str) -> Iterator[Span]:
    return (Span(start, end) for start, end in _places(quote, text))


def _places(sought: str, text: str) -> list[tuple[int, int]]:
    """Return the places of a text: as whole words if there are any, else inside words if it is long enough."""
    if not sought:
        return []
    alone, inside = [], []
    start = text.find(sought)
    while start >= 0:
        end = start + len(sought)
        if not (_joins(text, start) or _joins(text, end)):
            alone.append((start, end))
        elif len(sought) >= _MIN_INSIDE_WORD and not (_in_number(text, start) or _in_number(text, end)):
            inside.append((start, end))
        start = text.find(sought, start + 1)
    return alone or inside


def _joins(text: str, index: int) -> bool:
    """Tell whether the characters before and after an index belong to one word or one number."""
    if not 0 < index < len(text):
        return False
    before, after = text[index - 1], text[index]
    is_word = before.isalnum() and after.isalnum() and before < _FAR_EAST and after < _FAR_EAST
    return is_word or _in_number(text, index)


def _in_number(text: str, index: int) -> bool:
    """Tell whether an index is inside a number, which includes separators and the minus sign."""
    return _AMID_NUMBER.match(text, index) is not None


def _likely(plain: str, target: Target, spans: list[tuple[int, int]]) -> Candidates:
    """Return the places of the plain text that are most similar to a quote, if they are similar enough."""
    text, figures = target.plain, _figures(plain, 0, len(plain))
    spans = [
        (start, end)
        for start, end in spans
        if _figures(text, start, end) == figures and not (_in_number(text, start) or _in_number(text, end))
    ]
    likenesses = [Indel.normalized_similarity(plain, text[start:end]) for start, end in spans]
    best = max(likenesses, default=0.0)
    if best < MIN_LIKENESS:
        return NO_CANDIDATES
    chosen = {Span(*target.from_plain(*span)) for span, like in zip(spans, likenesses, strict=True) if like == best}
    return Candidates(status=Status.FUZZY, spans=tuple(sorted(chosen)), likeness=best)


def _has_same_words(plain: str, target: Target, place: tuple[int, int]) -> bool:
    """Tell whether each word of a quote is nearly the word at its place."""
    ours, theirs = (_WORD.findall(text) for text in (plain, target.plain[slice(*place)]))
    return len(ours) == len(theirs) and all(map(_is_nearly, ours, theirs))


def _is_nearly(one: str, other: str) -> bool:
    """Tell whether two words differ by so few letters that one may be the other, misspelled."""
    if "&" in (one, other):
        return {one, other} <= _ANDS
    length = min(len(one), len(other))
    return one == other or Levenshtein.distance(one, other) <= max(length >= _MIN_MISSPELLED, length // _A_WRONG_LETTER)


def _figures(text: str, start: int, end: int) -> str:
    return "".join(_FIGURES.findall(text, start, end))


def _by_letters(squeezed: str, plain: str, target: Target) -> list[tuple[int, int]]:
    """Return the places in the plain text with the same letters and digits, including the punctuation around them."""
    if not squeezed:
        return []
    places, start = [], target.squeezed.find(squeezed)
    while start >= 0:
        first, last = target.plain_from_squeezed(start, start + len(squeezed))
        if not (_joins(target.plain, first) or _joins(target.plain, last)):
            places.append(_with_punctuation(first, last, plain, target.plain))
        start = target.squeezed.find(squeezed, start + 1)
    return places


def _with_punctuation(start: int, end: int, quote: str, text: str) -> tuple[int, int]:
    """Extend a place by surrounding punctuation that the quote has too, nearest first."""
    head = re.match(r"[\W_]*", quote)
    tail = re.search(r"[\W_]*$", quote)
    before = list(head.group()) if head else []
    after = list(tail.group()) if tail else []
    while start > 0 and text[start - 1] in before and not text[start - 1].isspace():
        start -= 1
        before.remove(text[start])
    while end < len(text) and text[end] in after and not text[end].isspace():
        after.remove(text[end])
        end += 1
    return start, end


def _nearly(plain: str, target: Target) -> list[tuple[int, int]]:
    """Return the places of the plain text that match a quote fuzzily."""
    windows = _windows(plain, target.plain) or [(0, len(target.plain))]
    return [place for window in windows if (place := _nearest(plain, target.plain, window)) is not None]


def _windows(plain: str, text: str) -> list[tuple[int, int]]:
    """Return windows of a text around the quote's longest words, wide enough for the rest of the quote."""
    words = sorted(re.finditer(r"\w{3,}", plain), key=lambda word: -len(word.group()))[:_MAX_SEEDS]
    slack = 4 + len(plain) // 5
    windows = []
    for word in words:
        for start in _finds(word.group(), text):
            first = start - word.start()
            windows.append((max(0, first - slack), min(len(text), first + len(plain) + slack)))
    return _merged(sorted(windows), 3 * len(plain) + 2 * slack)


def _finds(seed: str, text: str) -> list[int]:
    """Return the places of a seed; none if there are too many to be useful."""
    places: list[int] = []
    start = text.find(seed)
    while start >= 0:
        places.append(start)
        if len(places) > _MAX_PLACES_OF_A_SEED:
            return []
        start = text.find(seed, start + 1)
    return places


def _merged(windows: list[tuple[int, int]], max_length: int) -> list[tuple[int, int]]:
    """Join overlapping windows unless the result is so long that it may hold the quote twice."""
    joined: list[tuple[int, int]] = []
    for start, end in windows:
        if joined and start < joined[-1][1] and end - joined[-1][0] <= max_length:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _nearest(plain: str, text: str, window: tuple[int, int]) -> tuple[int, int] | None:
    """Return the place in a window that is most similar to a quote, if it is similar enough."""
    part = text[slice(*window)]
    if len(part) < MIN_LIKENESS * len(plain):
        return None
    if len(part) <= len(plain):
        return _refined(plain, text, window, *window)
    alignment = fuzz.partial_ratio_alignment(plain, part, score_cutoff=100 * (MIN_LIKENESS - 0.1))
    if alignment is None:
        return None
    return _refined(plain, text, window, window[0] + alignment.dest_start, window[0] + alignment.dest_end)


def _refined(plain: str, text: str, window: tuple[int, int], start: int, end: int) -> tuple[int, int] | None:
    """Move the end and then the start of a place to the best fit, preferring word boundaries among equals."""

    def cost(first: int, last: int) -> tuple[float, bool, int]:
        inside = _joins(text, first) or _joins(text, last)
        return Levenshtein.distance(plain, text[first:last]), inside, abs(last - first - len(plain))

    for _ in range(2):  # the better start may allow a better end
        ends = range(max(start + 1, end - _MAX_REFINED), min(window[1], end + _MAX_REFINED) + 1)
        end = min(ends, key=lambda last: cost(start, last))
        starts = range(max(window[0], start - _MAX_REFINED), min(end - 1, start + _MAX_REFINED) + 1)
        start = min(starts, key=lambda first: cost(first, end))
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return (start, end) if start < end else None
