"""Tests of an index of segments: search results, incompatible segments, and its bytes as its complete state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from features.documents.extraction.errors import RetrievalError
from features.documents.extraction.retrieval.index import Index
from features.documents.extraction.retrieval.languages import language_of
from features.documents.extraction.retrieval.ranking import Hit, fused
from features.documents.extraction.retrieval.segment import Segment
from features.documents.extraction.retrieval.signature import Signature
from features.documents.extraction.retrieval.terms import Analyzer
from features.documents.extraction.retrieval.vectors import nearest
from tests.features.documents.extraction.retrieval.builders import WORDS, segment, with_vectors

FIRST = {"lease": "The rent is due monthly.", "memo": "Nothing of interest"}
SECOND = {"offer": "Monthly rents of two flats", "note": "Payment by cheque"}


def found(index: Index, question: str) -> list[str]:
    return [index.place(hit.row).document for hit in index.by_words(question, 10)]


def test_segments_are_searched_as_one_and_so_is_what_is_merged_of_them() -> None:
    parts = [segment(FIRST), segment(SECOND)]
    assert found(Index(parts), "when are rents due?") == ["lease", "offer"]
    merged = Segment.merged(parts)
    assert found(Index([merged]), "when are rents due?") == ["lease", "offer"]
    assert merged.place(2).document == "offer"
    assert merged.place(3).end == len(SECOND["note"])


def test_what_is_stored_is_what_is_read_with_vectors_and_without() -> None:
    vectors = np.eye(2, 3, dtype=np.float32)
    for one in (segment(FIRST), segment(FIRST, with_vectors(3), vectors)):
        again = Segment.from_bytes(one.to_bytes())
        assert (again.signature, again.documents, again.postings.terms) == (
            one.signature,
            one.documents,
            one.postings.terms,
        )
        assert again.to_bytes() == one.to_bytes()
        assert found(Index([again]), "rent") == ["lease"]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (replace(WORDS, cutter="words-2"), "cutter 'whole' and 'words-2'"),
        (replace(WORDS, tokenizer_sha256="u"), "tokenizer_sha256 't' and 'u'"),
        (replace(WORDS, language="simple"), "language 'english' and 'simple'"),
    ],
)
def test_segments_that_were_made_otherwise_are_not_mixed(other: Signature, says: str) -> None:
    strange = replace(segment(SECOND), signature=other)
    for mix in (lambda: Index([segment(FIRST), strange]), lambda: Segment.merged([segment(FIRST), strange])):
        with pytest.raises(RetrievalError, match=says):
            mix()


def test_vectors_of_another_model_pooling_or_prefix_are_not_mixed() -> None:
    mine = with_vectors(3)
    assert mine.embedding is not None
    for other in (
        None,
        replace(mine.embedding, model_sha256="n"),
        replace(mine.embedding, pooling="cls"),
        replace(mine.embedding, dtype="float32"),
        replace(mine.embedding, query_prefix="query: "),
    ):
        with pytest.raises(RetrievalError, match="embedding"):
            mine.require(replace(mine, embedding=other))


def test_vectors_that_are_not_as_the_signature_says_are_refused() -> None:
    with pytest.raises(RetrievalError, match=r"shape \(2, 4\); the passages need \(2, 3\)"):
        segment(FIRST, with_vectors(3), np.zeros((2, 4), np.float32))
    with pytest.raises(RetrievalError, match="shape None; "):
        segment(FIRST, with_vectors(3))


def test_an_index_without_vectors_says_so_where_it_is_searched_by_them() -> None:
    with pytest.raises(RetrievalError, match="has no vectors"):
        Index([segment(FIRST)]).by_vectors(np.zeros((1, 3), np.float32), 5)


@pytest.mark.parametrize("stored", [b"", b"tokidx", b"PK\x03\x04" * 9])
def test_other_bytes_are_no_segment(stored: bytes) -> None:
    with pytest.raises(RetrievalError, match="no part of an index"):
        Segment.from_bytes(stored)


def test_a_segment_without_its_end_or_of_a_newer_release_is_refused() -> None:
    stored = segment(FIRST).to_bytes()
    with pytest.raises(RetrievalError, match="truncated"):
        Segment.from_bytes(stored[:-1])
    with pytest.raises(RetrievalError, match="has version 9; this release reads 1"):
        Segment.from_bytes(stored[:6] + b"\x09" + stored[7:])


def test_the_nearest_rows_are_those_of_the_whole_product_over_all_parts() -> None:
    draw = np.random.default_rng(5)
    vectors = draw.normal(size=(40_000, 8)).astype(np.float16)
    questions = draw.normal(size=(3, 8)).astype(np.float32)
    hits = nearest([vectors[:17_000], vectors[17_000:]], questions, 20)
    scores = questions @ vectors.astype(np.float32).T
    assert [[hit.row for hit in own] for own in hits] == np.argsort(-scores, axis=1)[:, :20].tolist()


def test_questions_of_another_size_are_refused() -> None:
    with pytest.raises(RetrievalError, match="a question has 4 dimensions, the vectors of the index have 3"):
        nearest([np.zeros((1, 3), np.float16)], np.zeros((1, 4), np.float32), 5)


def test_rankings_are_joined_by_their_places() -> None:
    words = [Hit(1, 9.0), Hit(2, 8.0), Hit(3, 7.0)]
    near = [Hit(3, 0.9), Hit(4, 0.8), Hit(1, 0.7)]
    joined = fused([words, near], 3)
    assert [hit.row for hit in joined] == [1, 3, 2]
    assert [hit.score for hit in joined] == pytest.approx([1 / 61 + 1 / 63, 1 / 63 + 1 / 61, 1 / 62])


def test_both_rankings_find_what_only_one_of_them_has() -> None:
    vectors = np.eye(2, 3, dtype=np.float32)
    index = Index([segment(FIRST, with_vectors(3), vectors)])
    hits = index.by_both(["rent"], np.array([[0, 1, 0]], np.float32), 5)[0]
    assert {index.place(hit.row).document for hit in hits} == {"lease", "memo"}


def test_words_are_found_by_their_stem_in_a_known_language_and_as_they_are_in_none() -> None:
    assert Analyzer("english").terms("The leases, LEASED") == ["leas", "leas"]
    assert Analyzer("german").terms("Mieten") == Analyzer("german").terms("Miete")
    assert Analyzer("simple").terms("The ﬁnal leases") == ["the", "final", "leases"]
    assert Analyzer("simple").terms("1,234.50 a_b") == ["1,234.50", "1", "234", "50", "a", "b"]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("東京都の iPhone用ケース", ["東京", "京都", "都の", "iphone", "用ケ", "ケー", "ース"]),
        ("第2章 車", ["第", "2", "章", "車"]),
        ("東.京", ["東", "京"]),
        ("ภาษาไทย", ["ภา", "าษ", "ษา", "าไ", "ไท", "ทย"]),
        ("हिन्दी भाषा।", ["हिन्दी", "भाषा"]),
        ("한국어 문서", ["한국어", "문서"]),
        ("عُمان قهوة", ["عُمان", "قهوة"]),
    ],
)
def test_scripts_without_spaces_give_pairs_of_characters_and_others_keep_their_marks(
    text: str, terms: list[str]
) -> None:
    assert Analyzer("simple").terms(text) == terms


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Die Rechnung ist in den nächsten dreißig Tagen zu zahlen, und der Betrag ist fällig.", "german"),
        ("La facture est payable dans les trente jours qui suivent la livraison de la marchandise.", "french"),
        ("The invoice is to be paid within thirty days of the delivery of the goods.", "english"),
        ("El pago de la factura se hará en los treinta días que siguen a la entrega.", "spanish"),
        ("東京都の契約書", "none"),
        ("Zapłata za fakturę nastąpi w terminie trzydziestu dni od daty dostawy towaru do magazynu, o ile nie", "none"),
        ("Faktura je splatná do třiceti dnů od dodání zboží a v případě prodlení se platí úrok z částky", "none"),
        ("El pagament de la factura es farà en els trenta dies que segueixen a l'entrega de la mercaderia", "none"),
        ("Оплата рахунку здійснюється протягом тридцяти днів з дати поставки товару на склад покупця", "none"),
        ("1,234.50 119.00 R-17", "none"),
        ("", "none"),
    ],
)
def test_the_language_of_a_text_is_known_by_its_common_words(text: str, language: str) -> None:
    assert language_of(text, "none") == language


def test_an_unknown_language_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(RetrievalError, match="'klingon' is not known; give one of simple, arabic"):
        Analyzer("klingon")


def test_a_row_without_a_vector_is_not_near_to_anything() -> None:
    vectors = np.array([[1, 0], [np.nan, np.nan], [-1, 0]], np.float32)
    index = Index([segment({"a": "x", "b": "x", "c": "x"}, with_vectors(2), vectors)])
    assert [[hit.row for hit in hits] for hits in index.by_vectors(np.array([[1, 0], [-1, 0]], np.float32), 3)] == [
        [0, 2],
        [2, 0],
    ]
