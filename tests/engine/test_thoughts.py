"""Tests of reading the thoughts in an output, by its tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.errors import InvalidParamsError
from engine.thoughts import Next, PartedTokens, ThoughtGate, ThoughtMarks, Thoughts, parted

BEGIN, END, LINE_END = 10, 11, 12
TAGS = ThoughtMarks(begin=(BEGIN,), end=END)

START, CHANNEL, MESSAGE, ANALYSIS, FINAL, COMMENTARY, ASSISTANT = range(20, 27)
CHANNELS = ThoughtMarks(
    begin=(CHANNEL, ANALYSIS, MESSAGE),
    end=END,
    bare=(CHANNEL, FINAL, MESSAGE),
    bridge=(START, ASSISTANT, CHANNEL, FINAL, MESSAGE),
)
THINKING = (CHANNEL, ANALYSIS, MESSAGE)
ANSWERING = (START, ASSISTANT, CHANNEL, FINAL, MESSAGE)


def tags(*token_ids: int, is_open: bool = False, budget: int | None = None) -> PartedTokens:
    return parted(token_ids, Thoughts(marks=TAGS, is_open=is_open, budget=budget))


def channels(*token_ids: int) -> PartedTokens:
    return parted(token_ids, Thoughts(marks=CHANNELS))


def parts(output: PartedTokens) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    return output.thoughts, output.answer, output.is_cut


@pytest.mark.parametrize(
    ("token_ids", "is_open", "expected"),
    [
        ((BEGIN, 1, 2, END, 3), False, ((1, 2), (3,), False)),
        ((1, 2, END, 3), True, ((1, 2), (3,), False)),
        ((BEGIN, 1), False, ((1,), (), True)),
        ((), True, ((), (), True)),
        ((), False, ((), (), False)),
        ((1, 2), False, ((), (1, 2), False)),
        ((7, BEGIN, 1, END, 3), False, ((1,), (7, 3), False)),  # white space before the mark
        ((BEGIN, 1, END, 3, BEGIN, 4, END), False, ((1,), (3, BEGIN, 4, END), False)),  # only the first ones
        ((1, END, 3, BEGIN, 4), True, ((1,), (3, BEGIN, 4), False)),
    ],
)
def test_tags_part_thoughts_and_answer(
    token_ids: tuple[int, ...], is_open: bool, expected: tuple[tuple[int, ...], tuple[int, ...], bool]
) -> None:
    assert parts(tags(*token_ids, is_open=is_open)) == expected


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ((*THINKING, 1, 2, END, *ANSWERING, 3), ((1, 2), (3,), False)),
        ((CHANNEL, FINAL, MESSAGE, 3), ((), (3,), False)),
        ((*THINKING, 1, END, START, ASSISTANT, *THINKING, 2, END, *ANSWERING, 3), ((1, 2), (3,), False)),
        ((*THINKING, 1, END, START, ASSISTANT, CHANNEL, COMMENTARY, MESSAGE, 3), ((1,), (3,), False)),
        (
            (CHANNEL, COMMENTARY, MESSAGE, 3, END, START, ASSISTANT, *THINKING, 1, END, *ANSWERING, 4),
            ((1,), (3, 4), False),
        ),
        ((*THINKING, 1), ((1,), (), True)),
        ((*THINKING, 1, END, START, ASSISTANT), ((1,), (), True)),
    ],
)
def test_channels_part_thoughts_and_answer(
    token_ids: tuple[int, ...], expected: tuple[tuple[int, ...], tuple[int, ...], bool]
) -> None:
    assert parts(channels(*token_ids)) == expected


TITLED = replace(TAGS, title=(31, 32))


@pytest.mark.parametrize(
    ("token_ids", "is_open", "expected", "first"),
    [
        ((BEGIN, 31, 32, 1, END, 3), False, (1,), 3),
        ((BEGIN, 31), False, (), 0),
        ((BEGIN, 31, 5, 1, END, 3), False, (31, 5, 1), 1),  # begins like a title, and is none
        ((31, 32, 1, END, 3), True, (31, 32, 1), 0),  # the prompt had it
    ],
)
def test_a_title_is_not_of_the_thoughts(
    token_ids: tuple[int, ...], is_open: bool, expected: tuple[int, ...], first: int
) -> None:
    read = parted(token_ids, Thoughts(marks=TITLED, is_open=is_open))
    assert (read.thoughts, read.first_thought) == (expected, first)


def test_the_places_of_an_answer_are_those_of_its_tokens() -> None:
    assert tags(BEGIN, 1, END, 3, 4).answer_places == (3, 4)


def test_a_spent_budget_is_told_from_thoughts_that_ended_before() -> None:
    assert tags(BEGIN, 1, 2, END, 3, budget=2).has_spent_budget
    assert not tags(BEGIN, 1, END, 3, budget=2).has_spent_budget


@pytest.mark.parametrize("budget", [-1, True, 1.5])
def test_a_budget_is_a_whole_number(budget: int) -> None:
    with pytest.raises(InvalidParamsError, match="budget"):
        Thoughts(marks=TAGS, budget=budget)


def gate(marks: ThoughtMarks = TAGS, *, is_structured: bool = True, **changed: Any) -> ThoughtGate:
    thoughts = Thoughts(marks=marks, **changed)
    return ThoughtGate(thoughts, is_structured=is_structured, stop_token_ids=(2, END))


def test_a_grammar_waits_for_the_end_of_the_thoughts() -> None:
    one = gate()
    assert one.next == Next(is_grammars=True, also=frozenset({BEGIN}))
    one.read(BEGIN)
    assert one.next == Next(without=frozenset({2}))  # the output may not stop in its thoughts, which may end
    one.read(5)
    one.read(END)
    assert one.next == Next(is_grammars=True)


def test_a_line_end_may_lead_to_thoughts_and_to_nothing_else() -> None:
    one = gate(lead=(LINE_END,))
    assert one.next == Next(is_grammars=True, also=frozenset({BEGIN, LINE_END}))
    one.read(LINE_END)
    assert one.forced == (BEGIN,)
    assert one.next == Next(only=frozenset({BEGIN}))
    one.read(BEGIN)
    assert not one.forced
    one.read(LINE_END)
    assert one.next == Next(without=frozenset({2}))


def test_a_line_end_leads_nowhere_without_a_structure() -> None:
    one = gate(lead=(LINE_END,), budget=9, is_structured=False)
    one.read(LINE_END)
    assert not one.forced
    assert one.next == Next()


def test_an_answer_that_has_begun_leaves_no_room_for_thoughts() -> None:
    one = gate()
    one.answer()
    assert one.next == Next(is_grammars=True)


def test_a_copy_goes_on_by_itself() -> None:
    one = gate(is_open=True)
    other = one.copy()
    other.read(END)
    assert one.next == Next(without=frozenset({2}))
    assert other.next == Next(is_grammars=True)


def test_a_budget_forces_the_end_mark_and_nothing_else() -> None:
    one = gate(is_open=True, budget=2, is_structured=False)
    for token_id in (5, 6):
        assert not one.forced
        one.read(token_id)
    assert one.forced == (END,)
    assert one.next == Next(only=frozenset({END}))
    one.read(END)
    assert not one.forced
    assert one.next == Next()


def test_channels_lead_a_structured_output_to_its_answer() -> None:
    one = gate(CHANNELS)
    assert one.next == Next(only=frozenset({CHANNEL}))
    one.read(CHANNEL)
    assert one.next == Next(only=frozenset({ANALYSIS, FINAL}))
    for token_id in (ANALYSIS, MESSAGE, 1, END):
        one.read(token_id)
    for position, token_id in enumerate(ANSWERING):
        assert one.forced == ANSWERING[position:]
        one.read(token_id)
    assert one.next == Next(is_grammars=True)


def test_a_budget_leads_channels_to_the_answer() -> None:
    one = gate(CHANNELS, budget=1, is_structured=False)
    for token_id in (*THINKING, 1):
        one.read(token_id)
    for position, token_id in enumerate((END, *ANSWERING)):
        assert one.forced == (END, *ANSWERING)[position:]
        one.read(token_id)
    assert not one.forced
