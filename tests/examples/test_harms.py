"""Tests of damaged documents: unreadable values are gone, contradicted ones are stated twice."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from examples.documents import Split, draw_facts
from examples.field_requests import make_request, shown
from examples.harms import Harm, Harmed, draw_harms, harm_lines, harmed_gold
from examples.make_papers import Paper, make_papers
from examples.value_lists import list_text
from features.documents.extraction.fields.leaf import Kind

SHARE = 0.3


@pytest.fixture(scope="module")
def papers() -> list[Paper]:
    return list(make_papers(60, seed=11, harm_share=SHARE))


def with_harm(papers: list[Paper], harm: Harm) -> list[tuple[Paper, str, Harmed]]:
    return [(paper, name, each) for paper in papers for name, each in paper.harms.items() if each.harm is harm]


def test_as_many_values_are_harmed_as_are_asked_for(papers: list[Paper]) -> None:
    stated = sum(paper.gold[name] is not None or name in paper.harms for paper in papers for name in paper.gold)
    harmed = sum(len(paper.harms) for paper in papers)
    assert 0.7 * SHARE <= harmed / stated <= 1.3 * SHARE
    assert {each.harm for paper in papers for each in paper.harms.values()} == set(Harm)


def test_a_document_does_not_state_what_was_inked_over_or_has_lost_letters(papers: list[Paper]) -> None:
    whole = {paper.name: paper for paper in make_papers(60, seed=11)}
    for harm in (Harm.INKED, Harm.LOST):
        for paper, name, _ in with_harm(papers, harm):
            if name in ("vendor", "date", "number"):
                said = whole[paper.name].gold[name]
                assert paper.gold[name] is None
                assert said is not None
                assert str(said[0]) not in shown(paper.content, paper.name)


def test_a_letter_that_is_lost_can_be_missed() -> None:
    facts = replace(draw_facts(random.Random(5)), number="INV-48210")
    for seed in range(20):
        (line,) = harm_lines(["No: INV-48210"], facts, {"number": Harmed(harm=Harm.LOST)}, random.Random(seed))
        assert line.startswith("No: I")
        assert line.endswith("0")
        assert "?" in line


def test_what_is_contradicted_stands_there_twice_and_has_no_right_answer(papers: list[Paper]) -> None:
    for paper, name, each in with_harm(papers, Harm.CONTRADICTED):
        assert paper.gold[name] is None
        assert each.other_quote in shown(paper.content, paper.name)


def test_every_quote_of_a_harmed_document_stands_in_it(papers: list[Paper]) -> None:
    for paper in papers:
        text = shown(paper.content, paper.name)
        assert all(found is None or found[1] in text for found in paper.gold.values()), text


def test_a_sum_without_its_currency_keeps_its_amount() -> None:
    facts = replace(draw_facts(random.Random(5)), currency="EUR")
    gold = {"total": (2.5, "EUR 2.50"), "currency": ("EUR", "EUR 2.50")}
    found = harmed_gold(gold, "Total 2.50", facts, {"currency": Harmed(harm=Harm.INKED)})
    assert found["currency"] is None
    assert found["total"] is not None
    assert found["total"][0] == 2.5


def test_nothing_is_harmed_that_is_not_asked_for() -> None:
    facts = draw_facts(random.Random(5))
    assert draw_harms(facts, random.Random(0), share=0.0) == {}
    assert all(paper.harms == {} for paper in make_papers(5, seed=11))


def test_a_list_of_values_has_both_of_what_is_contradicted_and_nothing_unreadable() -> None:
    seen: set[Harm] = set()
    for index in range(60):
        asked = make_request(Split.TRAINING, 7, index, harm_share=SHARE)
        told = list_text(asked, set(Kind))
        for name, each in asked.harms.items():
            if name in ("vendor", "number") and each.harm is Harm.CONTRADICTED:
                assert f'"value":"{each.other}"' in told
                assert f'"value":"{getattr(asked.facts, name)}"' in told
                seen.add(each.harm)
            elif name == "vendor":
                assert f'"value":"{asked.facts.vendor}"' not in told
                seen.add(each.harm)
    assert seen == set(Harm)
