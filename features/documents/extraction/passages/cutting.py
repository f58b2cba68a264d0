"""Cut a text into passages of at most so many tokens, at the best places: headings, paragraphs, sentences, words.

Knows no tokenizer: the function that is given says how many tokens a text has, and no passage has more than it allows.
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
"""Of the tokens of a passage, a quarter may be the end of the one before."""
_MAX_HEADINGS_SHARE = 2
"""Of the tokens of a passage: headings that take more than half are left out, the outermost first."""
_LIKELY_CHARACTERS = 64
"""Of a token, at most: a longer stretch is not counted as a whole, which would take its time and memory once more."""
WINDOW_CHARACTERS = 32
"""For each token of a passage, which has some four: how much of a text with longer lines is looked at at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutter:
    """How texts are cut. Raises PassageError for limits that cannot be kept."""

    count: Count
    max_tokens: int
    """Of a passage with its headings before it; without them where they do not count."""
    overlap_tokens: int = 0
    """How many tokens of the end of a passage may be the beginning of the next one, too."""
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
        """Return what says of two texts that they were cut alike; of the tokenizer, whoever gives it must say more."""
        rule = f"{self.max_tokens}-{self.overlap_tokens}-{'with' if self.do_headings_count else 'without'}-headings"
        return f"passages-1 semantic-text-splitter-{version('semantic-text-splitter')} {rule}"

    def cut(self, text: str, headings: Sequence[Heading] = ()) -> list[Passage]:
        """Return the passages of a text in its order; together they hold all of it but for blanks."""
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
        """Yield the pieces of a stretch, each short enough with a text before it; nothing of blanks alone."""
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
        """Yield the pieces of a text that is too long for one."""
        from semantic_text_splitter import TextSplitter  # noqa: PLC0415 - roles that only plan need not have it

        overlap = self.overlap_tokens + (self.count(before) if before and self.overlap_tokens else 0)
        splitter = TextSplitter.from_callback(lambda piece: self.count(before + piece), self.max_tokens, overlap)

        def split(start: int, end: int) -> list[Span]:
            found = splitter.chunk_indices(text[start:end])
            return [Span(start + begin, start + begin + len(piece)) for begin, piece in found]

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
    """Yield the pieces into which `split` cuts a text from 0 to its length, from a window of it at a time.

    For each piece the splitter looks for the end of its sentence, however far that is: where a sentence is a whole text
    its time would grow with the square of that. What stands over a quarter of a window behind a piece hardly ever
    changes it. But a window begins with a piece, and not with the blanks before it: where pieces overlap, it may be by
    a few words more or fewer than in the text as a whole.
    """
    start = reached = 0
    width = window
    while start < length:
        end = start + width
        found = split(start, end)
        if end >= length:
            kept, start = found, length
        else:
            kept = [piece for piece in found[:-1] if piece.end <= end - width // 4]
            start = found[len(kept)].start if found else end
        yield from (piece for piece in kept if piece.end > reached)
        reached = kept[-1].end if kept else reached
        width = window if kept or not found else 2 * width  # a piece may be longer than any usual one
