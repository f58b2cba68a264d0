"""A text without what differs between two prints of it, and the way back from each of its places.

Two levels: *plain* (case, blanks, quotes, ligatures, hyphens at line ends, separators of thousands), and *squeezed*,
which leaves letters, digits and decimal signs. Knows no quote.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property

_HYPHENATION = r"(?<=\w)-[ \t]*\n\s*(?=\w)"
THOUSANDS = "'’\u00a0\u202f"
"""What stands between thousands and is no decimal sign. Not a plain blank: columns of a table have one between them."""
_SEPARATOR = rf"(?<=\d)[.,{THOUSANDS}](?=\d{{3}}(?!\d))"
_BLANKS = r"\s{2,}"
_NO_LETTERS = re.compile(r"(?P<gap>(?<=\d)(?![.,]\d)[\W_]++(?=\d))|(?<!\d)[\W_]++|(?<=\d)[\W_]++(?!\d)")
"""Goes; but a decimal sign stays, and between two numbers a blank."""

_SIGNS = {
    **dict.fromkeys("‘’‚‛´`′", "'"),
    **dict.fromkeys("“”„‟«»″", '"'),
    **dict.fromkeys("‐‑‒–—−", "-"),
}


class Mapped:
    """A text made from another by replacing pieces; knows where each of its characters came from."""

    def __init__(self, source: str, pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str]) -> None:
        pieces: list[str] = []
        self._starts = [0]
        """Of the stretches, in this text; they are copied and replaced by turns, beginning with a copied one."""
        self._origins = [0]
        """Of the same, in the source."""
        length = end = 0
        for found in pattern.finditer(source):
            start, next_end = found.span()
            piece = replacement(found)
            pieces.append(source[end:start])
            pieces.append(piece)
            length += start - end
            self._starts.append(length)
            self._origins.append(start)
            length += len(piece)
            self._starts.append(length)
            self._origins.append(next_end)
            end = next_end
        pieces.append(source[end:])
        self.text = "".join(pieces)

    def to_source(self, start: int, end: int) -> tuple[int, int]:
        """Return the stretch of the source that [start, end), of one character at least, was made from."""
        return self._origin(start, 0), self._origin(end - 1, 1)

    def _origin(self, index: int, side: int) -> int:
        """Return where the character at an index begins (side 0) or ends (side 1) in the source."""
        stretch = bisect_right(self._starts, index) - 1
        if stretch % 2 == 0:
            return self._origins[stretch] + index - self._starts[stretch] + side
        return self._origins[stretch + side]


class Target:
    """A text that quotes are looked for in; its levels are made when they are first needed, once."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _plain(self) -> Mapped:
        singles, multiples = _folds(self.text)
        table = str.maketrans(singles)
        pattern = "|".join(
            [_HYPHENATION, _SEPARATOR, _BLANKS, *([f"[{re.escape(''.join(multiples))}]"] if multiples else [])]
        )

        def replacement(found: re.Match[str]) -> str:
            piece = found.group()
            if piece in multiples:
                return multiples[piece]
            return " " if piece.isspace() and len(piece) > 1 else ""

        mapped = Mapped(self.text, re.compile(pattern), replacement)
        mapped.text = mapped.text.translate(table).lower()
        return mapped

    @cached_property
    def _squeezed(self) -> Mapped:
        return Mapped(self._plain.text, _NO_LETTERS, lambda found: " " if found["gap"] else "")

    @property
    def plain(self) -> str:
        """Return the text in one print."""
        return self._plain.text

    @property
    def squeezed(self) -> str:
        """Return its letters and digits alone."""
        return self._squeezed.text

    def from_plain(self, start: int, end: int) -> tuple[int, int]:
        """Return the stretch of the text that [start, end) of the plain one stands for."""
        return self._plain.to_source(start, end)

    def plain_from_squeezed(self, start: int, end: int) -> tuple[int, int]:
        """Return the stretch of the plain text that [start, end) of the squeezed one stands for."""
        return self._squeezed.to_source(start, end)


def _folds(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return what a text's characters become, apart by whether that is one character or none or several."""
    singles: dict[str, str] = {}
    multiples: dict[str, str] = {}
    for sign in set(text):
        if sign < "\x80" and not sign.isspace():
            continue
        folded = _fold(sign)
        (singles if len(folded) == 1 else multiples)[sign] = folded
    return singles, multiples


def _fold(sign: str) -> str:
    if sign in _SIGNS:
        return _SIGNS[sign]
    if sign.isspace():
        return " "
    folded = unicodedata.normalize("NFKC", sign).casefold()
    return folded if len(folded.lower()) == len(folded) else folded.lower()
