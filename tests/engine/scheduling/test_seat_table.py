"""Tests that a number has one home, and that arrays do to many sequences what is otherwise done to one."""

from __future__ import annotations

from dataclasses import fields

import pytest

from engine.config import SchedulerConfig
from engine.scheduling.blocks import NO_PARENT, BlockPool
from engine.scheduling.request import Sequence
from engine.scheduling.seat_map import SeatMap
from engine.scheduling.seat_numbers import SeatNumbers, ints
from engine.scheduling.seat_table import SeatTable
from tests.engine.sampling.builders import seated


def numbers_of(sequence: Sequence) -> list[int]:
    return list(sequence.numbers)


def test_a_sequence_takes_its_numbers_along_and_leaves_an_empty_row() -> None:
    table = SeatTable(2, 1)
    sequence = seated([5, 6], [7], row=1, table=table)
    sequence.num_computed_tokens, sequence.draft_token_ids = 2, [8, 9]
    assert table.numbers.num_computed_tokens.tolist() == [0, 2]
    assert table.numbers.num_drafts.tolist() == [0, 2]
    before = numbers_of(sequence)
    table.leave(sequence)
    assert numbers_of(sequence) == before
    assert not any(getattr(table.numbers, one.name).any() for one in fields(SeatNumbers))
    table.take(0, sequence, chain_position=NO_PARENT)
    table.numbers.num_tokens[0] += 1
    assert sequence.num_tokens == 4


def test_a_sequence_holds_its_row_only_until_it_leaves() -> None:
    table = SeatTable(1, 1)
    first, second = seated([5], [], table=table), seated([6], [])
    rows, serials = ints([first.row]), ints([first.serial])
    assert table.hold(rows, serials).all()
    table.leave(first)
    table.take(0, second, chain_position=NO_PARENT)
    assert not table.hold(rows, serials).any()


@pytest.mark.parametrize("is_pending", [False, True])
def test_tokens_appended_to_all_rows_are_those_appended_to_each_sequence(*, is_pending: bool) -> None:
    table = SeatTable(3, 1)
    together = [seated([5], [], row=row, table=table) for row in (2, 0)]
    alone = [seated([5], [], row=row) for row in (2, 0)]
    rows = ints([2, 0])
    for token_id in range(200):
        if is_pending:
            table.expect_tokens(rows)
        for index in table.append(rows, ints([token_id, 300 + token_id])).tolist():
            together[index].settle()
        alone[0].append(token_id)
        alone[1].append(300 + token_id)
    for one, other in zip(together, alone, strict=True):
        assert (one.num_tokens, one.num_pending, one.last_token_id) == (201, 0, other.last_token_id)
        assert one.token_ids == other.token_ids


def test_fresh_tokens_go_with_a_sequence_that_leaves() -> None:
    table = SeatTable(1, 1)
    sequence = seated([5], [6], table=table)
    table.append(ints([0]), ints([7]))
    table.leave(sequence)
    assert sequence.token_ids == [5, 6, 7]


def test_blocks_for_all_rows_are_those_for_each_sequence() -> None:
    config = SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=64, max_model_len=40)
    together, alone = SeatMap(BlockPool(40, 4), config), SeatMap(BlockPool(40, 4), config)
    for counts in ([1, 1, 1], [1, 9, 16]):
        one_by_one = [waiting([1] * length) for length in (4, 5, 8)]
        at_once = [waiting([1] * length) for length in (4, 5, 8)]
        for seats, sequences in ((together, at_once), (alone, one_by_one)):
            for sequence in sequences:
                seats.seat(sequence, [], NO_PARENT)
                seats.grow(sequence, 1)
                sequence.num_computed_tokens = sequence.num_tokens - 1
        rows = ints([sequence.row for sequence in at_once])
        missing = together.missing_blocks(rows, ints(counts))
        expected = [alone.num_missing_blocks(*pair) for pair in zip(one_by_one, counts, strict=True)]
        assert missing.tolist() == expected
        together.grow_rows(rows[missing > 0], missing[missing > 0])
        for sequence, count in zip(one_by_one, expected, strict=True):
            alone.grow(sequence, count)
        assert [one.block_ids for one in at_once] == [one.block_ids for one in one_by_one]
        for seats, sequences in ((together, at_once), (alone, one_by_one)):
            seats.check_integrity(sequences)
            for sequence in sequences:
                seats.leave(sequence)


def waiting(prompt: list[int]) -> Sequence:
    table = SeatTable(1, 1)
    sequence = seated(prompt, [], table=table)
    table.leave(sequence)
    return sequence
