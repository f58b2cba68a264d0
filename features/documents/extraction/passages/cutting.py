"""Cuts a text into passages of limited length at the best places: headings, paragraphs, sentences, words.

The given function counts tokens; no passage exceeds the limit by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from features.documents.extraction.documents.document import Heading
from features.documents.extraction.errors import PassageError
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.passages.passage import Passage, beginning
from features.documents.extraction.passages.sections import Section, sections

Count = Callable[[str], int]

LEAST_TOKENS = 16
MAX_OVERLAP_SHARE = 4
"""Reciprocal of the maximum overlap: a quarter of a passage's tokens may repeat the end of the previous one."""
_MAX_HEADINGS_SHARE = 2
"""Reciprocal of the headings' share: headings over half of the tokens are dropped, outermost first."""
_LIKELY_CHARACTERS = 64
"""Maximum characters per token: a longer stretch is not counted as a whole, which would double time and memory."""
WINDOW_CHARACTERS = 32
"""Per token of a passage (about four characters each): window size for texts with longer lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutter:
    """Settings for cutting texts. Raises PassageError for limits that cannot be met."""

    count: Count
    max_tokens: int
    """Maximum tokens of a passage, with its headings if they count."""
    overlap_tokens: int = 0
    """Maximum tokens at the end of a passage that the next one repeats."""
    do_headings_count: bool = True

    def __post_init__(self) -> None:
        if self.max_tokens < LEAST_TOKENS:
            raise PassageError(
                f"a passage of {self.max_tokens} tokens holds no sentence; allow {LEAST_TOKENS} or more."
            )
        most = self.max_tokens // MAX_OVERLAP_SHARE
        if not 0 <= self.overlap_tokens <= most:
            raise PassageError(
                f"an overlap of {self.overlap_tokens} tokens is given; of {self.max_tokens} tokens, 0 to {most} may be."
            )

    @property
    def version(self) -> str:
        """Return a version that is equal for texts cut alike; the caller must add one for the tokenizer."""
        rule = f"{self.max_tokens}-{self.overlap_tokens}-{'with' if self.do_headings_count else 'without'}-headings"
        return f"passages-1 semantic-text-splitter-{version('semantic-text-splitter')} {rule}"

    def cut(self, text: str, headings: Sequence[Heading] = ()) -> list[Passage]:
        """Return the passages of a text in order; together they cover all of it except blanks."""
        return [passage for section in sections(text, headings) for passage in self._passages(text, section)]

    def _passages(self, text: str, section: Section) -> Iterator[Passage]:
        inside = self._that_fit((*section.outer, section.title) if section.title else section.outer)
        outer = inside[:-1] if section.title else inside
        room = inside if self.do_headings_count else inside[-1:]  # the first has its own heading in its text
        spans = list(self._spans(text, section.body, beginning(room)))
        whole = Span(section.heading.start, spans[0].end if spans else section.heading.end)
        if section.title and spans and self._num_tokens(text, whole, outer) <= self.max_tokens:
            spans = spans[1:]
            yield self._passage(text, whole, outer)
        else:
            yield from (
                self._passage(text, span, outer) for span in self._spans(text, section.heading, self._before(outer))
            )
        yield from (self._passage(text, span, inside) for span in spans)

    def _spans(self, text: str, span: Span, before: str) -> Iterator[Span]:
        """Yield the pieces of a stretch, each short enough after a prefix; skips stretches of blanks."""
        part = text[span.start : span.end]
        inner = part.strip()
        if not inner:
            return
        if len(inner) <= _LIKELY_CHARACTERS * self.max_tokens and self.count(before + inner) <= self.max_tokens:
            start = span.start + part.index(inner)
            yield Span(start, start + len(inner))
            return
        for piece in self._pieces(part, before):
            yield Span(span.start + piece.start, span.start + piece.end)

    def _pieces(self, text: str, before: str) -> Iterator[Span]:
        """Yield the pieces of a text that is too long for one passage."""
        from semantic_text_splitter import TextSplitter  # noqa: PLC0415 - roles that only plan need not have it

        overlap = self.overlap_tokens + (self.count(before) if before and self.overlap_tokens else 0)
        splitter = TextSplitter.from_callback(lambda piece: self.count(before + piece), self.max_tokens, overlap)

        def split(start: int, end: int) -> list[Span]:
            chunks = splitter.chunk_indices(text[start:end])
            return [Span(start + begin, start + begin + len(piece)) for begin, piece in chunks]

        window = WINDOW_CHARACTERS * self.max_tokens
        has_long_line = any(len(line) > window for line in text.splitlines())
        return by_windows(split, len(text), window) if has_long_line else iter(split(0, len(text)))

    def _passage(self, text: str, span: Span, headings: tuple[str, ...]) -> Passage:
        num_tokens = self._num_tokens(text, span, headings)
        if num_tokens > self.max_tokens:
            raise PassageError(f"a word that cannot be cut has {num_tokens} tokens; allow as many for a passage.")
        return Passage(start=span.start, end=span.end, headings=headings, num_tokens=num_tokens)

    def _num_tokens(self, text: str, span: Span, headings: tuple[str, ...]) -> int:
        return self.count(self._before(headings) + text[span.start : span.end])

    def _before(self, headings: tuple[str, ...]) -> str:
        return beginning(headings) if self.do_headings_count else ""

    def _that_fit(self, headings: tuple[str, ...]) -> tuple[str, ...]:
        while headings and self.count(beginning(headings)) > self.max_tokens // _MAX_HEADINGS_SHARE:
            headings = headings[1:]
        return headings


def by_windows(split: Callable[[int, int], list[Span]], length: int, window: int) -> Iterator[Span]:
    """Yield the pieces into which `split` cuts a text from 0 to its length, one window at a time.

    For each piece the splitter searches the end of its sentence, so its time would be quadratic in a text of a single
    sentence. Text beyond a quarter of a window after a piece hardly ever changes the piece. But a window begins with a
    piece and not with the blanks before it: where pieces overlap, the overlap may differ by a few words from that in
    the whole text.
    """
    start = reached = 0
    width = window
    while start < length:
        end = start + width
        pieces = split(start, end)
        if end >= length:
            kept, start = pieces, length
        else:
            kept = [piece for piece in pieces[:-1] if piece.end <= end - width // 4]
            start = pieces[len(kept)].start if pieces else end
        yield from (piece for piece in kept if piece.end > reached)
        reached = kept[-1].end if kept else reached
        width = window if kept or not pieces else 2 * width  # a piece may be unusually long
