"""Measure how often and how fast quotes are located at their own position in generated texts, verbatim and under noise.

A quote is 2 to 8 words of a text of about 5,000 tokens; ten quotes of a text are aligned together, in their order, so
that a quote that occurs several times is right at one position only. Noise changes a quote, never the text.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from features.documents.extraction.grounding.align import align
from features.documents.extraction.grounding.spans import Span

_CHARACTERS = 20_000
"""Of a text: about 5,000 tokens."""
_QUOTES = 10
_REPEATED_SHARE = 0.05
"""Share of paragraphs that repeat an earlier one verbatim.

With this share the first occurrence of a quote is its own as often as on XQuAD (96.7 %).
"""
_SYLLABLES = "ba ko rin tel mar sun ver do lis pen gra hol ti mes fan our el stra be ne cor di val wer"
_MONTHS = "January March May July August October December"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of all quotes under one noise."""

    noise: str
    num_quotes: int
    exact_share: float
    """Share of quotes whose span is their own, to the character."""
    first_share: float
    """Share of quotes whose own position is their first in the text: the accuracy of always taking the first."""
    median_milliseconds: float
    """CPU time for one text and its ten quotes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print one row for each noise, or JSON."""
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction alignment", description=__doc__)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    outcomes = measure(num_texts=arguments.texts, seed=arguments.seed)
    if arguments.json:
        print(json.dumps([{name: getattr(each, name) for name in Outcome.__slots__} for each in outcomes], indent=2))
        return 0
    print(f"{'noise':<16}{'quotes':>8}{'own place':>11}{'is first':>10}{'ms a text':>11}")
    for each in outcomes:
        print(
            f"{each.noise:<16}{each.num_quotes:>8}{each.exact_share:>11.2%}{each.first_share:>10.2%}{each.median_milliseconds:>11.2f}"
        )
    return 0


def measure(*, num_texts: int, seed: int) -> list[Outcome]:
    """Return the outcome under each noise; every noise has the same texts and quotes."""
    return [_measure(noise, num_texts=num_texts, seed=seed) for noise in NOISES]


def _measure(noise: str, *, num_texts: int, seed: int) -> Outcome:
    right, first, seconds = 0, 0, []
    for number in range(num_texts):
        rng = random.Random(f"{seed} {number}")
        text = generated_text(rng)
        spans = quoted_spans(text, rng)
        quotes = [NOISES[noise](text[span.start : span.end], rng) for span in spans]
        started = time.process_time()
        alignments = align(quotes, text)
        seconds.append(time.process_time() - started)
        first += sum(text.find(text[span.start : span.end]) == span.start for span in spans)
        right += sum(each.spans == (span,) for each, span in zip(alignments, spans, strict=True))
    return Outcome(
        noise=noise,
        num_quotes=num_texts * _QUOTES,
        exact_share=right / (num_texts * _QUOTES),
        first_share=first / (num_texts * _QUOTES),
        median_milliseconds=1000 * statistics.median(seconds),
    )


def generated_text(rng: random.Random, characters: int = _CHARACTERS) -> str:
    """Return prose, records and tables of invented words, with repeated paragraphs."""
    syllables = _SYLLABLES.split()
    vocabulary = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(900)]
    paragraphs: list[str] = []
    while sum(map(len, paragraphs)) < characters:
        if paragraphs and rng.random() < _REPEATED_SHARE:
            paragraphs.append(rng.choice(paragraphs))
        else:
            paragraphs.append(rng.choice((_prose, _record, _table))(vocabulary, rng))
    return "\n\n".join(paragraphs)


def _prose(vocabulary: Sequence[str], rng: random.Random) -> str:
    sentences = []
    for _ in range(rng.randint(2, 6)):
        words = rng.choices(vocabulary, k=rng.randint(5, 16))
        words[rng.randrange(len(words))] = _amount(rng)
        words[len(words) // 2] += ","
        sentences.append(" ".join(words).capitalize() + ".")
    return _wrapped(" ".join(sentences))


def _wrapped(text: str) -> str:
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > 90:
            lines.append(line)
            line = ""
        line += (" " if line else "") + word
    return "\n".join([*lines, line])


def _record(vocabulary: Sequence[str], rng: random.Random) -> str:
    names = [word.capitalize() for word in rng.choices(vocabulary, k=4)]
    day = f"{rng.choice(_MONTHS.split())} {rng.randint(1, 28)}, {rng.randint(1990, 2030)}"
    address = f"{names[2]}str. {rng.randint(1, 200)}"
    return f"{names[0]} & {names[1]} GmbH\n{address}\nDate: {day}\n{names[3]} No. {rng.randint(10**5, 10**6)}"


def _table(vocabulary: Sequence[str], rng: random.Random) -> str:
    rows = [
        f"{rng.choice(vocabulary):<16}{rng.randint(1, 20):>4}    {_amount(rng):>12}    {_amount(rng):>12}"
        for _ in range(rng.randint(3, 9))
    ]
    return "\n".join(rows)


def _amount(rng: random.Random) -> str:
    return f"{rng.randint(1, 10**6) / 100:,.2f}"


def quoted_spans(text: str, rng: random.Random) -> list[Span]:
    """Return the spans of ten quotes, without overlaps, in text order."""
    words = _words(text)
    spans: list[Span] = []
    while len(spans) < _QUOTES:
        first = rng.randrange(len(words) - 8)
        span = _trimmed(Span(words[first].start, words[first + rng.randint(1, 7)].end), text)
        if not any(span.overlaps(other) for other in spans):
            spans.append(span)
    return sorted(spans)


def _words(text: str) -> list[Span]:
    words, start = [], 0
    for word in text.split():
        start = text.index(word, start)
        words.append(Span(start, start + len(word)))
        start += len(word)
    return words


def _trimmed(span: Span, text: str) -> Span:
    """Return a span without punctuation at its ends: under noise it could not be recognized as part of the quote."""
    start, end = span.start, span.end
    while not text[start].isalnum():
        start += 1
    while not text[end - 1].isalnum():
        end -= 1
    return Span(start, end)


def _one_wrong(quote: str, rng: random.Random) -> str:
    """Change a letter of a quote that has three; another digit would be another number, not a noisy one."""
    letters = [index for index, sign in enumerate(quote) if sign.isalpha()]
    if len(letters) < 3:
        return quote
    index = rng.choice(letters)
    return (
        quote[:index] + rng.choice("abcdefghijklmnopqrstuvwxyz".replace(quote[index].lower(), "")) + quote[index + 1 :]
    )


def _punctuation(quote: str, rng: random.Random) -> str:
    """Drop a third of a quote's punctuation outside numbers and insert some between its words."""
    letters = "".join(
        sign for sign in quote if sign.isalnum() or sign.isspace() or sign in ".&" or rng.random() > 1 / 3
    )
    words = [word + rng.choice(",;:-") if rng.random() < 0.25 else word for word in letters.split()]
    return " ".join(words)


def _blanks(quote: str, rng: random.Random) -> str:
    return "".join(
        "\n" if sign == " " and rng.random() < 0.3 else sign * rng.randint(1, 2) if sign == " " else sign
        for sign in quote
    )


NOISES: dict[str, Callable[[str, random.Random], str]] = {
    "none": lambda quote, _: quote,
    "upper case": lambda quote, _: quote.upper(),
    "one wrong": _one_wrong,
    "punctuation": _punctuation,
    "blanks": _blanks,
}

if __name__ == "__main__":
    raise SystemExit(main())
