"""Tests of the demo model's training examples for `tokenmill extract`: requests as in its passes, readable answers."""

from __future__ import annotations

from itertools import islice

import pytest

from examples.documents import Split
from examples.evaluate_demo_model import MODEL_DIRECTORY, load_demo_model
from examples.field_requests import SCHEMA_PATH, answer_text, make_request, shown
from examples.make_papers import make_papers
from examples.train_demo_model import IGNORED
from examples.train_fields import MAX_POSITIONS, AnswerTokens, batches, field_chat
from features.documents.extraction.fields.groups import groups
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes.answers import read_answer


def test_every_quote_of_a_request_stands_in_its_document() -> None:
    for index in range(60):
        asked = make_request(Split.TRAINING, 7, index)
        assert all(found is None or found[1] in asked.text for found in asked.fields.values()), asked.text


def test_every_paper_states_its_gold_in_words() -> None:
    for paper in make_papers(20, seed=7):
        text = shown(paper.content, paper.name)
        found = [paper.fields[name] for name in ("vendor", "number") if paper.fields[name] is not None]
        assert all(value in text for value in found), text


def test_an_answer_is_what_the_passes_read() -> None:
    schema = FieldSchema.parse(SCHEMA_PATH.read_bytes())
    (group,) = groups(schema)
    asked = make_request(Split.TRAINING, 7, 3)
    answer = read_answer(answer_text(asked.fields), group)
    assert answer.missing == ()
    assert {reading.place[0]: (reading.value, reading.quote) for reading in answer.readings} == {
        name: found or (None, None) for name, found in asked.fields.items()
    }


def test_a_chat_may_ask_for_some_fields_or_again() -> None:
    asked = [field_chat(index, seed=7)[0][-1]["content"] for index in range(80)]
    assert any("- currency" not in content for content in asked)
    assert any("A first answer was doubtful (" in content for content in asked)


@pytest.mark.long
def test_batches_train_on_answers_and_fit_the_context() -> None:
    _, tokenizer = load_demo_model()
    tokens = AnswerTokens(tokenizer, MODEL_DIRECTORY)
    for batch in islice(batches(tokenizer, tokens, seed=7), 3):
        assert batch.tokens.shape[1] <= MAX_POSITIONS
        for targets in batch.targets:
            answer = tokenizer.decode(targets[targets != IGNORED])
            assert answer.startswith("{")
            assert answer.endswith("}" + str(tokenizer.eos_token))


def test_keys_are_cut_as_a_grammar_forces_them() -> None:
    _, tokenizer = load_demo_model()
    _, answer, form = next(chat for chat in (field_chat(index, seed=7) for index in range(9)) if chat[2] is not None)
    tokens = AnswerTokens(tokenizer, MODEL_DIRECTORY)
    forced, own = tokens.of(answer, form), tokens.of(answer, None)
    assert tokenizer.decode(forced) == tokenizer.decode(own) == answer + str(tokenizer.eos_token)
    assert forced != own
