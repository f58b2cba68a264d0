"""Normalised forms of a text, with a mapping from each position back to the text.

Two levels: *plain* folds case, whitespace, quotes, ligatures, hyphens at line ends and thousands separators; *squeezed*
keeps only letters, digits and decimal signs.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property

_HYPHENATION = r"(?<=\w)-[ \t]*\n\s*(?=\w)"
THOUSANDS = "'’\u00a0\u202f"
"""Thousands separators that are never decimal signs. Excludes the space, which also separates table columns."""
_SEPARATOR = rf"(?<=\d)[.,{THOUSANDS}](?=\d{{3}}(?!\d))"
_BLANKS = r"\s{2,}"
_NO_LETTERS = re.compile(r"(?P<gap>(?<=\d)(?![.,]\d)[\W_]++(?=\d))|(?<!\d)[\W_]++|(?<=\d)[\W_]++(?!\d)")
"""Removed, except decimal signs; between two numbers a space remains."""

_SIGNS = {
    **dict.fromkeys("‘’‚‛´`′", "'"),
    **dict.fromkeys("“”„‟«»″", '"'),
    **dict.fromkeys("‐‑‒–—−", "-"),
}


class Mapped:
    """A text made from another by replacing pieces, with a mapping of its characters to their origins."""

    def __init__(self, source: str, pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str]) -> None:
        pieces: list[str] = []
        self._starts = [0]
        """Starts of the stretches in this text; copied and replaced ones alternate, beginning with a copied one."""
        self._origins = [0]
        """Starts of the same stretches in the source."""
        length = end = 0
        for match in pattern.finditer(source):
            start, next_end = match.span()
            piece = replacement(match)
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
        """Return the stretch of the source that the nonempty [start, end) was made from."""
        return self._origin(start, 0), self._origin(end - 1, 1)

    def _origin(self, index: int, side: int) -> int:
        """Return where the character at an index begins (side 0) or ends (side 1) in the source."""
        stretch = bisect_right(self._starts, index) - 1
        if stretch % 2 == 0:
            return self._origins[stretch] + index - self._starts[stretch] + side
        return self._origins[stretch + side]


class Target:
    """A text in which quotes are searched; normalised forms are made once, on first use."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _plain(self) -> Mapped:
        singles, multiples = _folds(self.text)
        table = str.maketrans(singles)
        pattern = "|".join(
            [_HYPHENATION, _SEPARATOR, _BLANKS, *([f"[{re.escape(''.join(multiples))}]"] if multiples else [])]
        )

        def replacement(match: re.Match[str]) -> str:
            piece = match.group()
            if piece in multiples:
                return multiples[piece]
            return " " if piece.isspace() and len(piece) > 1 else ""

        mapped = Mapped(self.text, re.compile(pattern), replacement)
        mapped.text = mapped.text.translate(table).lower()
        return mapped

    @cached_property
    def _squeezed(self) -> Mapped:
        return Mapped(self._plain.text, _NO_LETTERS, lambda match: " " if match["gap"] else "")

    @property
    def plain(self) -> str:
        """Return the text folded to one form."""
        return self._plain.text

    @property
    def squeezed(self) -> str:
        """Return only the letters and digits."""
        return self._squeezed.text

    def from_plain(self, start: int, end: int) -> tuple[int, int]:
        """Return the stretch of the text that corresponds to [start, end) of the plain text."""
        return self._plain.to_source(start, end)

    def plain_from_squeezed(self, start: int, end: int) -> tuple[int, int]:
        """Return the stretch of the plain text that corresponds to [start, end) of the squeezed text."""
        return self._squeezed.to_source(start, end)


def _folds(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the replacements of a text's characters: those by one character, and those by none or several."""
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
