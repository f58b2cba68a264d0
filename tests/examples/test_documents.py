"""Tests of the document generator: deterministic, and its gold matches the text."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from examples.documents import (
    Document,
    Split,
    answer_text,
    chat_messages,
    exact_fields,
    make_documents,
)

COMMON_FIELDS = {"type", "vendor", "date"}


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return list(make_documents(500, split=Split.EVALUATION, seed=3))


def test_the_same_seed_gives_the_same_documents(documents: list[Document]) -> None:
    assert list(make_documents(500, split=Split.EVALUATION, seed=3)) == documents


def test_a_document_depends_on_its_index_and_not_on_where_the_stream_starts(documents: list[Document]) -> None:
    assert list(make_documents(5, split=Split.EVALUATION, seed=3, start=100)) == list(islice(documents, 100, 105))


@pytest.mark.parametrize(("split", "seed"), [(Split.EVALUATION, 4), (Split.TRAINING, 3), (Split.DEMO, 3)])
def test_another_split_or_seed_shares_no_document(documents: list[Document], split: Split, seed: int) -> None:
    others = {document.text for document in make_documents(500, split=split, seed=seed)}
    assert others.isdisjoint(document.text for document in documents)


def test_a_document_has_four_to_six_fields_among_them_the_common_ones(documents: list[Document]) -> None:
    for document in documents:
        assert document.fields.keys() >= COMMON_FIELDS
        assert 4 <= len(document.fields) <= 6


def test_vendor_number_total_and_pieces_stand_in_the_text_as_in_the_gold(documents: list[Document]) -> None:
    for document in documents:
        stated = [value for name, value in document.fields.items() if name in {"vendor", "number", "total", "pieces"}]
        assert all(value in document.text for value in stated), document


def test_the_layouts_vary(documents: list[Document]) -> None:
    shapes = {tuple(line[:1].isdigit() for line in document.text.splitlines()) for document in documents}
    assert len(shapes) >= 20
    assert len({document.fields["type"] for document in documents}) == 5


def test_the_gold_answer_states_every_field_exactly(documents: list[Document]) -> None:
    for document in documents:
        answer = answer_text(document)
        assert json.loads(answer) == document.fields
        assert exact_fields(document, answer) == set(document.fields)


def test_a_wrong_value_costs_its_own_field_only(documents: list[Document]) -> None:
    document = documents[0]
    answer = json.dumps(document.fields | {"date": "1999-01-01"})
    assert exact_fields(document, answer) == set(document.fields) - {"date"}


@pytest.mark.parametrize("answer", ["", "[]", '{"type":"invoice"', "no json"])
def test_an_answer_that_is_no_json_object_states_nothing(documents: list[Document], answer: str) -> None:
    assert exact_fields(documents[0], answer) == set()


def test_the_request_is_a_system_message_and_the_document(documents: list[Document]) -> None:
    messages = chat_messages(documents[0])
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[1]["content"] == documents[0].text
