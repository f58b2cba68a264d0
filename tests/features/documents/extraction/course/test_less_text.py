"""Tests of a question that is too long for a model: asked with fewer fields and less text, shorter each round."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from features.documents.extraction.course import job
from features.documents.extraction.course.document import again_requests, record_of
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.course.line_results import Answers, LineResult
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.passes.examples import Example
from features.documents.extraction.passes.prompts import Request
from tests.features.documents.extraction.course.asked import REFUSED, TEXT, WINDOW


def asking_for(properties: dict[str, Any]) -> ExtractJob:
    schema = json.dumps({"type": "object", "properties": properties})
    return replace(job.plan(schema.encode(), quotes=False, params={}, max_fields=25), window=WINDOW)


def paragraphs(count: int) -> Document:
    return parse("\n\n".join(f"paragraph {number}" for number in range(count)).encode(), "a.txt", Limits())


def size_of(request: Request) -> int:
    return sum(len(message["content"]) for message in request.messages)


def test_a_question_whose_text_has_more_tokens_than_counted_gets_shorter_each_round() -> None:
    asking = asking_for({f"field_{number}": TEXT for number in range(8)})
    text = "\n\n".join(" ".join(f"{row * 7919 + column:06d}" for column in range(12)) for row in range(300))
    showing = asking.showing(parse(text.encode(), "a.txt", Limits()))
    sizes, rounds = (
        [size_of(asking.first_request(0, asking.excerpt(0, showing).layout.text))],
        list[dict[str, LineResult]](),
    )
    while asked := again_requests(asking, showing, Answers(first=[REFUSED], again=rounds)):
        sizes.append(max(map(size_of, asked.values())))
        rounds.append(dict.fromkeys(asked, REFUSED))
    assert [len(asked) for asked in rounds] == [2, 4, 8, 8, 8], "down to a leaf, and then with half of the text"
    assert all(after < 0.7 * before for before, after in pairwise(sizes))


def test_a_single_field_whose_question_is_too_long_is_asked_with_less_text_and_then_says_so() -> None:
    asking = asking_for({"total": TEXT})
    lines = "\n\n".join(f"{number * 7919:09d} {number * 104729:09d}" for number in range(99))
    showing = asking.showing(parse(f"{lines}\n\nThe total is 77.\n\n{lines}".encode(), "a.txt", Limits()))
    sizes, rounds = list[int](), list[dict[str, LineResult]]()
    while asked := again_requests(asking, showing, Answers(first=[REFUSED], again=rounds)):
        (request,) = asked.values()
        assert "The total is 77." in request.messages[-1]["content"]
        sizes.append(size_of(request))
        rounds.append(dict.fromkeys(asked, REFUSED))
    assert len(sizes) == 5
    assert all(after < 0.8 * before for before, after in pairwise(sizes))
    answered = Answers(first=[REFUSED], again=[*rounds[:2], {"0": LineResult(text='{"total": "77"}')}])
    for answers, error, fields in (
        (answered, None, {"total": "77"}),
        (Answers(first=[REFUSED], again=rounds), "context_length_exceeded", None),
    ):
        found = record_of(asking, showing, answers, name="a.txt", sha256="", usage={})
        assert ((found["error"] or {}).get("code"), found["fields"]) == (error, fields)


@pytest.mark.parametrize(("num_words", "num_examples"), [(300, 0), (0, 3)], ids=["description", "examples"])
def test_with_less_text_no_prompt_is_asked_again_as_it_was(num_words: int, num_examples: int) -> None:
    told = TEXT | {"description": " ".join(f"explain{number}" for number in range(num_words))}
    examples = tuple(
        Example(document_text=f"sample {number} " * 200, fields={"total": "sample"}) for number in range(num_examples)
    )
    asking = replace(asking_for({"total": told}), examples=examples)
    showing = asking.showing(paragraphs(999))
    prompts, rounds = [asking.first_request(0, asking.excerpt(0, showing).layout.text)], list[dict[str, LineResult]]()
    while asked := again_requests(asking, showing, Answers(first=[REFUSED], again=rounds)):
        prompts += asked.values()
        rounds.append(dict.fromkeys(asked, REFUSED))
    assert len(rounds) > 2
    assert all(size_of(after) < size_of(before) for before, after in pairwise(prompts))


def test_a_field_that_is_asked_with_less_text_comes_behind_the_others_of_its_group() -> None:
    asking = asking_for({f"f{number}": TEXT for number in range(6)})
    showing = asking.showing(paragraphs(999))
    too_long = [{f"0-{number}": REFUSED for number in range(num_asked)} for num_asked in (2, 4)]
    assert list(again_requests(asking, showing, Answers(first=[REFUSED], again=too_long))) == [
        f"0-{number}" for number in range(6)
    ]
    said = enumerate((0, 1, 3, 4))
    earlier = {f"0-{key}": LineResult(text=json.dumps({f"f{field}": "paragraph 1"})) for key, field in said}
    answers = Answers(first=[REFUSED], again=[*too_long, earlier])
    found = record_of(asking, showing, answers, name="a.txt", sha256="", usage={})
    assert [name for name, value in found["fields"].items() if value is None] == ["f2", "f5"]


def test_of_a_short_text_less_is_shown_at_once_where_a_single_field_was_too_long() -> None:
    asking = asking_for({"total": TEXT})
    showing = asking.showing(paragraphs(60))
    whole = showing.whole.layout.text
    (first,) = again_requests(asking, showing, Answers(first=[REFUSED])).values()
    assert "paragraph 1" in first.messages[-1]["content"]
    assert whole not in first.messages[-1]["content"]
