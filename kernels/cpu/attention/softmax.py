"""The online softmax of attention for 1 to 4 query rows and a round of keys: scores become shares. Base 2.

A row's result depends only on its own scores: those of keys that it does not see may be anything, NaN included.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.attention.products import MAX_ROWS, ROUND_KEYS
from kernels.cpu.runtime import vectors as v

_NO_KEY = -3e38  # the score of a masked key: so far below a row's first largest score that its share is 0

_float32, _word = types.CPointer(types.float32), types.int64


@intrinsic
def soften(  # noqa: PLR0917  compiled
    typing_context: Any,
    rows: Any,
    scores: Any,
    shares: Any,
    first: Any,
    end: Any,
    spans: Any,
    scale: Any,
    states: Any,
    factors: Any,
) -> Any:
    """Turn the scores of 1 to 4 rows in groups [first, end) into unnormalised shares 2**(score · scale − top).

    spans[2 * row] and the next are a row's first key and last + 1; its other shares are zero. `states` holds each row's
    largest score (top) and sum of shares so far. `factors` takes by how much each row's sums shrink.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        for number in range(1, MAX_ROWS + 1):
            with builder.if_then(builder.icmp_signed("==", arguments[0], v.I64(number))):
                _Softmax(builder, arguments[1:], number, shares.dtype == types.uint16).emit()
        return context.get_dummy_value()

    kind = types.void(_word, _float32, shares, _word, _word, types.CPointer(_word), types.float32, _float32, _float32)
    return kind, generate


class _Softmax:
    """Generate the code of `soften`: one pass for the largest scores, one for the shares, all rows in parallel."""

    def __init__(self, builder: Any, arguments: Any, rows: int, is_bfloat16: bool) -> None:
        self.builder = builder
        self.scores, self.shares, self.first, self.end, self.spans, self.scale, self.states, self.factors = arguments
        self.rows, self.is_bfloat16 = range(rows), is_bfloat16

    def emit(self) -> None:
        builder = self.builder
        places = [[builder.gep(self.states, [v.I64(2 * row + field)]) for row in self.rows] for field in (0, 1)]
        old_tops, old_totals = ([builder.load(place) for place in fields] for fields in places)
        tops = [v.larger(builder, a, b) for a, b in zip(self._largest(), old_tops, strict=True)]
        shrink = ir.Constant(v.FLOATS, [0.0] * v.LANES)
        for row, (top, old_top) in enumerate(zip(tops, old_tops, strict=True)):
            shrink = builder.insert_element(shrink, builder.fsub(old_top, top), v.I32(row))
        shrink = v.exp2(builder, shrink)
        totals = self._share_out(tops)
        for row in self.rows:
            factor = builder.extract_element(shrink, v.I32(row))
            builder.store(factor, builder.gep(self.factors, [v.I64(row)]))
            builder.store(tops[row], places[0][row])
            builder.store(v.multiply_add(builder, old_totals[row], factor, totals[row]), places[1][row])

    def _largest(self) -> list[Any]:
        """Scale the scores in place, set masked ones far down, and return each row's largest."""
        builder, tops = self.builder, [cgutils.alloca_once(self.builder, v.FLOATS) for _ in self.rows]
        scale, far_down = v.spread(builder, self.scale), ir.Constant(v.FLOATS, [_NO_KEY] * v.LANES)
        spans = [[builder.load(builder.gep(self.spans, [v.I64(2 * row + n)])) for n in (0, 1)] for row in self.rows]
        for top in tops:
            builder.store(far_down, top)
        for group, row in self._groups_and_rows():
            first, end = spans[row]
            offset = builder.add(group, v.I64(row * ROUND_KEYS))
            score = builder.fmul(v.load_vector(builder, self.scores, offset, v.FLOATS), scale)
            is_key = v.lanes_within(builder, builder.sub(first, group), builder.sub(end, first))
            score = builder.select(is_key, score, far_down)
            v.store_floats(builder, score, self.scores, offset)
            builder.store(v.larger(builder, score, builder.load(tops[row])), tops[row])
        return [v.largest_lane(builder, builder.load(top)) for top in tops]

    def _share_out(self, tops: list[Any]) -> list[Any]:
        builder, totals = self.builder, [cgutils.alloca_once(self.builder, v.FLOATS) for _ in self.rows]
        tops = [v.spread(builder, top) for top in tops]
        for total in totals:
            builder.store(v.zeros(), total)
        for group, row in self._groups_and_rows():
            offset = builder.add(group, v.I64(row * ROUND_KEYS))
            score = v.load_vector(builder, self.scores, offset, v.FLOATS)
            share = self._store_share(v.exp2(builder, builder.fsub(score, tops[row])), offset)
            builder.store(builder.fadd(builder.load(totals[row]), share), totals[row])
        return [v.sum_of_lanes(builder, builder.load(total)) for total in totals]

    def _groups_and_rows(self) -> Iterator[tuple[Any, int]]:
        """Loop over the groups (the code is generated once), within over the rows: (first key of the group, row)."""
        with cgutils.for_range(self.builder, self.builder.sub(self.end, self.first)) as loop:
            group = self.builder.mul(self.builder.add(self.first, loop.index), v.I64(v.LANES))
            for row in self.rows:
                yield group, row

    def _store_share(self, share: Any, first: Any) -> Any:
        """Store 16 shares; return them as rounded, so that a row's shares sum to 1."""
        if not self.is_bfloat16:
            v.store_floats(self.builder, share, self.shares, first)
            return share
        halves = v.round_to_bfloat16(self.builder, share)
        address = self.builder.bitcast(self.builder.gep(self.shares, [first]), v.HALVES.as_pointer())
        self.builder.store(halves, address, align=2)
        return v.widen_bfloat16(self.builder, halves)
