"""Tests of prompts for documents that are too long for them: the right passages, in order, at their positions."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from features.documents.extraction.course.document import record_of
from features.documents.extraction.course.job import ExtractJob, plan
from features.documents.extraction.course.line_results import Answers, LineResult
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.passes.document_reading import Question
from features.documents.extraction.passes.examples import Example
from features.documents.extraction.passes.excerpts import Showing, Window, pieces_of, spread, words_of
from features.documents.extraction.passes.likeness import choose_examples
from features.documents.extraction.passes.prompts import Request
from lab.extraction.alignment import generated_text
from lab.extraction.pdf_writer import PdfPage, Words, write_pdf
from tests.features.documents.extraction.passages.builders import count

SCHEMA = {
    "type": "object",
    "properties": {
        "tenantName": {"type": "string", "description": "who rents the flat"},
        "deposit": {"type": "number", "x-tokenmill": {"metric": "money"}},
    },
}
NUM_PAGES = 300
SAID = {120: "The tenant is Ash Ltd who rents the flat", 250: "Deposit to be paid 1,250.00"}


@pytest.fixture(scope="module")
def long_document() -> Document:
    """Return 300 pages, two of which state something."""
    draw = random.Random(3)
    lines = [line for number in range(20) for line in generated_text(draw).splitlines() if line]
    pages = []
    for page in range(NUM_PAGES):
        words = [Words(x=50, y=60 + 12 * row, text=draw.choice(lines)[:90]) for row in range(50)]
        if page in SAID:
            words[25] = Words(x=50, y=60 + 12 * 25, text=SAID[page])
        pages.append(PdfPage(words=tuple(words)))
    return parse(write_pdf(pages), "long.pdf", Limits())


def job(*, max_tokens: int, schema: object = SCHEMA, max_fields: int = 25) -> ExtractJob:
    planned = plan(json.dumps(schema).encode(), quotes=True, params={"max_tokens": 256}, max_fields=max_fields)
    return ExtractJob(
        schema=planned.schema,
        groups=planned.groups,
        quotes=True,
        params=planned.params,
        window=Window(max_tokens=max_tokens, count=count),
    )


def longest_prompt(asked: ExtractJob, text: str) -> int:
    """Return the tokens of the question that doubts every leaf of the first group, for one reason."""
    doubts = dict.fromkeys((leaf.path for leaf in asked.groups[0].leaves), "a second reading found another value there")
    return num_tokens(replace(asked, window=None).again_request(text, Question(group=0, doubts=doubts)))


def num_tokens(request: Request) -> int:
    return sum(count(message["content"]) for message in request.messages)


@pytest.mark.parametrize("max_tokens", [700, 1024, 4096])
def test_a_prompt_of_a_long_document_fits_and_holds_what_its_fields_need(
    long_document: Document, max_tokens: int
) -> None:
    asked = job(max_tokens=max_tokens)
    showing = asked.showing(long_document)
    assert len(showing.whole.layout.text) > 500_000
    shown = asked.excerpt(0, showing).layout.text
    assert max_tokens - 400 < longest_prompt(asked, shown) + 256 <= max_tokens
    assert all(said in shown for said in SAID.values())
    assert shown.index(SAID[120]) < shown.index(SAID[250])


def test_values_of_a_long_document_are_found_on_their_pages(long_document: Document) -> None:
    asked = job(max_tokens=1024)
    said = {
        "tenantName": {"value": "Ash Ltd", "quote": "tenant is Ash Ltd"},
        "deposit": {"value": 1250.0, "quote": "to be paid 1,250.00"},
    }
    result = LineResult(text=json.dumps(said))
    showing = asked.showing(long_document)
    record = record_of(asked, showing, Answers(first=[result]), name="a", sha256="b", usage={})
    found = {each["path"]: each for each in record["evidence"]}
    assert {path: each["spans"][0]["page"] for path, each in found.items()} == {"tenantName": 120, "deposit": 250}
    span = found["deposit"]["spans"][0]
    assert long_document.text[span["start"] : span["end"]] == "to be paid 1,250.00"
    assert {each["grounding"] for each in found.values()} == {"exact"}


def test_a_prompt_shows_what_stands_beside_the_words_of_its_fields_too() -> None:
    draw = random.Random(5)
    filler = [" ".join(draw.choices(("of", "it", "was", "by", "then", "some"), k=40)) for _ in range(400)]
    said = ["Of the deposit:", filler[200], "1,250.00 Ash Ltd", filler[201], "who rents the flat"]
    lines = [*filler[:200], *said, *filler[202:]]
    document = parse("\n\n".join(lines).encode(), "long.txt", Limits())
    asked = job(max_tokens=700)
    shown = asked.excerpt(0, asked.showing(document)).layout.text
    assert all(part in shown for part in said[::2])
    assert asked.window is not None
    as_before = replace(asked, window=replace(asked.window, excerpt_rule=1))
    assert said[2] not in as_before.excerpt(0, as_before.showing(document)).layout.text


def test_passages_of_a_document_are_chosen_in_its_language() -> None:
    draw = random.Random(5)
    words = ("der", "die", "und", "ist", "nicht", "mit", "Garten", "Wetter", "Straße", "Zeitung")
    filler = [" ".join(draw.choices(words, k=40)) for _ in range(400)]
    said = "An Miete sind monatlich 950,00 fällig"
    document = parse("\n\n".join([*filler[:250], said, *filler[250:]]).encode(), "long.txt", Limits())
    schema = {"type": "object", "properties": {"x": {"type": "number", "description": "Höhe der Mieten"}}}
    asked = job(max_tokens=700, schema=schema)
    assert said in asked.excerpt(0, asked.showing(document)).layout.text
    assert asked.window is not None
    as_before = replace(asked, window=replace(asked.window, excerpt_rule=2))
    assert said not in as_before.excerpt(0, as_before.showing(document)).layout.text


def test_a_job_by_another_rule_of_what_is_shown_is_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = job(max_tokens=700)
    before = asked.identity()
    monkeypatch.setattr("features.documents.extraction.course.job.EXCERPT_RULES", (1, 2, 3, 4))
    assert asked.identity() != before


def test_scores_reach_the_passages_beside_them_and_no_further() -> None:
    assert spread(np.array([0, 0, 0, 4, 0, 0, 0, 8], np.float32)).tolist() == [0, 1, 2, 4, 2, 3, 4, 8]
    assert spread(np.array([3], np.float32)).tolist() == [3]


def test_a_prompt_has_room_for_examples_too(long_document: Document) -> None:
    known = [Example(document_text=f"{number} " * 40, fields={"deposit": 5.0}) for number in range(3)]
    asked = replace(job(max_tokens=1024), examples=tuple(known))
    shown = asked.excerpt(0, asked.showing(long_document)).layout.text
    assert longest_prompt(asked, shown) + 256 <= 1024


def test_a_document_that_fits_is_shown_whole_and_none_of_it_twice() -> None:
    document = parse(b"Ash Ltd\n\nDeposit 5", "a.txt", Limits())
    asked = job(max_tokens=1024)
    excerpt = asked.excerpt(0, asked.showing(document))
    assert (excerpt.layout.text, excerpt.ranks) == ("Ash Ltd\n\nDeposit 5", {})


def test_without_room_for_a_passage_a_prompt_is_a_little_too_long_and_the_model_says_so(
    long_document: Document,
) -> None:
    asked = job(max_tokens=300)
    shown = asked.excerpt(0, asked.showing(long_document)).layout.text
    assert 0 < count(shown) <= 64


def test_where_doubts_would_leave_no_room_the_first_question_has_it_all(long_document: Document) -> None:
    wide = {
        "type": "object",
        "properties": {
            f"what_the_contract_says_of_the_clause_with_number_{number}": {"type": "string"} for number in range(24)
        },
    }
    max_tokens = longest_prompt(job(max_tokens=2000, schema=wide), "") + 256 + 80
    asked = job(max_tokens=max_tokens, schema=wide)
    shown = asked.excerpt(0, asked.showing(long_document)).layout.text
    assert longest_prompt(asked, shown) + 256 > max_tokens
    assert max_tokens - 150 < num_tokens(asked.first_request(0, shown)) + 256 <= max_tokens


def test_no_field_of_a_group_is_asked_without_its_words() -> None:
    assert words_of(job(max_tokens=1024).groups[0]) == "tenant Name deposit who rents the flat"


def test_pieces_lead_back_to_where_they_stood(long_document: Document) -> None:
    whole = Showing(long_document).whole.layout
    draw = random.Random(1)
    starts = sorted(draw.sample(range(0, len(whole.text) - 400, 400), 30))
    spans = [Span(start, start + draw.randrange(20, 300)) for start in starts]
    shown = pieces_of(whole, spans)
    place = 0
    for span in spans:
        part = whole.text[span.start : span.end]
        assert shown.text[place : place + len(part)] == part
        assert shown.pieces(place, place + len(part)) == whole.pieces(span.start, span.end)
        place += len(part) + 2


def test_a_long_document_is_not_shown_itself_as_an_example(long_document: Document) -> None:
    whole = Showing(long_document).whole.layout.text
    known = (Example(document_text=whole, fields={}), Example(document_text="Yak Inc", fields={}))
    asked = replace(job(max_tokens=1024), examples=known)
    shown = asked.excerpt(0, asked.showing(long_document)).layout.text
    assert choose_examples(shown, known) == known[1:]
    assert choose_examples(whole, known) == known[1:]
