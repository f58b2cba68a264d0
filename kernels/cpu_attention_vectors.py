"""The inner loops of attention for 1 to 4 query rows that share a KV head: scores of keys, shares, sums of values.

A round is up to 128 keys, each at its own offset (elements) from the start of the cache, so nothing here knows of
blocks or positions. Queries and shares in bf16 mean bf16 dot products (AVX512-BF16); float32 means plain fused
multiply-adds, with a bf16 cache widened in registers. A row sums in the same order whatever the other rows hold.
`ahead` holds the offsets of the next round: its cache lines are asked for while this one is computed, since blocks lie
scattered.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels import cpu_vectors as v

ROUND_KEYS = 128
MAX_ROWS = 4
_KEYS_AT_ONCE = 4
_WIDE = 4  # vectors: 16 sums for 4 rows, and the values beside them, fill 32 registers

_float32, _offsets, _word = types.CPointer(types.float32), types.CPointer(types.int64), types.int64


@intrinsic
def score_keys(  # noqa: PLR0917  compiled
    typing_context: Any,
    rows: Any,
    query: Any,
    stride: Any,
    keys: Any,
    offsets: Any,
    ahead: Any,
    groups: Any,
    dim: Any,
    scores: Any,
) -> Any:
    """Write the products of 1 to 4 queries with `groups` × 16 keys to scores[row * 128 + key].

    `query` holds rows of `stride` elements, zero from `dim` on to a multiple of 32.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        is_dot, is_bfloat16 = query.dtype == types.uint16, keys.dtype == types.uint16
        for number in range(1, MAX_ROWS + 1):
            with builder.if_then(builder.icmp_signed("==", arguments[0], v.I64(number))):
                _Scores(builder, arguments[1:], number, is_dot, is_bfloat16).emit()
        return context.get_dummy_value()

    return types.void(_word, query, _word, keys, _offsets, _offsets, _word, _word, _float32), generate


class _Scores:
    """Write the code of `score_keys`: sums of 4 keys × `rows` rows in registers, folded to one vector for 16 keys."""

    def __init__(self, builder: Any, arguments: Any, rows: int, is_dot: bool, is_bfloat16: bool) -> None:
        self.builder = builder
        self.query, self.stride, self.keys, self.offsets, self.ahead = arguments[:5]
        self.groups, self.dim, self.scores = arguments[5:]
        self.rows, self.is_dot, self.is_bfloat16 = rows, is_dot, is_bfloat16
        self.step = v.PAIRED_LANES if is_dot else v.LANES

    def emit(self) -> None:
        builder = self.builder
        quads = ir.ArrayType(v.FLOATS, _KEYS_AT_ONCE * self.rows)
        partial = builder.bitcast(cgutils.alloca_once(builder, quads), v.FLOATS.as_pointer())
        totals = [[cgutils.alloca_once(builder, v.FLOATS) for _ in range(self.rows)] for _ in range(_KEYS_AT_ONCE)]
        whole = builder.and_(self.dim, v.I64(-self.step))
        with cgutils.for_range(builder, self.groups) as group:
            first = builder.mul(group.index, v.I64(v.LANES))
            with cgutils.for_range(builder, v.I64(_KEYS_AT_ONCE)) as quad:
                self._score_quad(totals, builder.add(first, builder.mul(quad.index, v.I64(_KEYS_AT_ONCE))), whole)
                for row in range(self.rows):
                    a, b, c, d = (builder.load(key[row]) for key in totals)
                    folded = v.fold(builder, v.fold(builder, a, b, 1), v.fold(builder, c, d, 1), 2)
                    place = builder.add(builder.mul(quad.index, v.I64(self.rows)), v.I64(row))
                    builder.store(folded, builder.gep(partial, [place]))
            for row in range(self.rows):
                a, b, c, d = (
                    builder.load(builder.gep(partial, [v.I64(quad * self.rows + row)])) for quad in range(_KEYS_AT_ONCE)
                )
                folded = v.fold(builder, v.fold(builder, a, b, 4), v.fold(builder, c, d, 4), 8)
                v.store_floats(builder, folded, self.scores, builder.add(first, v.I64(row * ROUND_KEYS)))

    def _score_quad(self, totals: Any, first: Any, whole: Any) -> None:
        builder = self.builder
        for key in totals:
            for total in key:
                builder.store(v.zeros(), total)
        numbers = [builder.add(first, v.I64(key)) for key in range(_KEYS_AT_ONCE)]
        starts, ahead = (
            [builder.load(builder.gep(offsets, [number])) for number in numbers]
            for offsets in (self.offsets, self.ahead)
        )
        with cgutils.for_range(builder, builder.sdiv(whole, v.I64(self.step))) as loop:
            d = builder.mul(loop.index, v.I64(self.step))
            self._add_products(totals, starts, d, None)
            for start in ahead:
                v.prefetch(builder, self.keys, builder.add(start, d))
        with builder.if_then(builder.icmp_signed("<", whole, self.dim)):
            self._add_products(totals, starts, whole, builder.sub(self.dim, whole))

    def _add_products(self, totals: Any, starts: Any, d: Any, width: Any) -> None:
        builder = self.builder
        places = [builder.add(builder.mul(self.stride, v.I64(row)), d) for row in range(self.rows)]
        queries = [self._load(self.query, place, self.is_dot, None) for place in places]
        add = v.dot_pairs if self.is_dot else v.multiply_add
        for start, sums in zip(starts, totals, strict=True):
            key = self._load(self.keys, builder.add(start, d), self.is_bfloat16, width)
            for query, total in zip(queries, sums, strict=True):
                builder.store(add(builder, key, query, builder.load(total)), total)

    def _load(self, pointer: Any, index: Any, is_bfloat16: bool, width: Any) -> Any:
        if self.is_dot:
            return v.load_vector(self.builder, pointer, index, v.PAIRS, width)
        return v.load_floats(self.builder, pointer, index, is_bfloat16, width)


@intrinsic
def add_values(  # noqa: PLR0917  compiled
    typing_context: Any,
    rows: Any,
    shares: Any,
    values: Any,
    offsets: Any,
    ahead: Any,
    count: Any,
    sums: Any,
    stride: Any,
    factors: Any,
    dim: Any,
) -> Any:
    """Set sums[row * stride + d] to itself · factors[row] + Σ_n shares[row * 128 + n] · values[offsets[n] + d].

    For 1 to 4 rows and all d below `dim`; a row of sums has room for a multiple of 32. bf16 shares are taken in pairs:
    behind an odd `count` there must be a 0 with a finite value.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        is_dot, is_bfloat16 = shares.dtype == types.uint16, values.dtype == types.uint16
        for number in range(1, MAX_ROWS + 1):
            with builder.if_then(builder.icmp_signed("==", arguments[0], v.I64(number))):
                _Sums(builder, arguments[1:], number, is_dot, is_bfloat16).emit()
        return context.get_dummy_value()

    kind = types.void(_word, shares, values, _offsets, _offsets, _word, _float32, _word, _float32, _word)
    return kind, generate


class _Sums:
    """Write the code of `add_values`: the sums of up to 64 dimensions stay in registers over all keys of the round."""

    def __init__(self, builder: Any, arguments: Any, rows: int, is_dot: bool, is_bfloat16: bool) -> None:
        self.builder = builder
        self.shares, self.values, self.offsets, self.ahead, self.count = arguments[:5]
        self.sums, self.stride, self.factors, self.dim = arguments[5:]
        self.rows, self.is_dot, self.is_bfloat16 = rows, is_dot, is_bfloat16
        self.line = 32 if is_bfloat16 else 16  # elements of a cache line

    def emit(self) -> None:
        """Take the dimensions 64 at a time, then one load at a time, then what is left."""
        builder, narrow = self.builder, 1 + self.is_dot
        lanes = v.LANES * narrow
        wide_end, whole_end = builder.and_(self.dim, v.I64(-_WIDE * v.LANES)), builder.and_(self.dim, v.I64(-lanes))
        with cgutils.for_range(builder, builder.sdiv(wide_end, v.I64(_WIDE * v.LANES))) as loop:
            self._emit_columns(_WIDE, builder.mul(loop.index, v.I64(_WIDE * v.LANES)), None)
        with cgutils.for_range(builder, builder.sdiv(builder.sub(whole_end, wide_end), v.I64(lanes))) as loop:
            self._emit_columns(narrow, builder.add(wide_end, builder.mul(loop.index, v.I64(lanes))), None)
        with builder.if_then(builder.icmp_signed("<", whole_end, self.dim)):
            self._emit_columns(narrow, whole_end, builder.sub(self.dim, whole_end))

    def _emit_columns(self, vectors: int, start: Any, width: Any) -> None:
        """Sum `vectors` × 16 dimensions from `start` on, of which only `width` are read where it is given."""
        builder = self.builder
        self.vectors, self.start = vectors, start
        totals = [[cgutils.alloca_once(builder, v.FLOATS) for _ in range(vectors)] for _ in range(self.rows)]
        for row, sums in enumerate(totals):
            factor = v.spread(builder, builder.load(builder.gep(self.factors, [v.I64(row)])))
            for vector, total in enumerate(sums):
                old = v.load_vector(builder, self.sums, self._place(row, vector), v.FLOATS)
                builder.store(builder.fmul(old, factor), total)
        pairs = builder.lshr(builder.add(self.count, v.I64(1)), v.I64(1))
        with cgutils.for_range(builder, pairs if self.is_dot else self.count) as loop:
            columns = self._pair(loop.index, width) if self.is_dot else self._single(loop.index, width)
            add = v.dot_pairs if self.is_dot else v.multiply_add
            for row, sums in enumerate(totals):
                share = self._share(row, loop.index)
                for column, total in zip(columns, sums, strict=True):
                    builder.store(add(builder, column, share, builder.load(total)), total)
        for row, sums in enumerate(totals):
            for vector, total in enumerate(sums):
                v.store_floats(builder, builder.load(total), self.sums, self._place(row, vector))

    def _place(self, row: int, vector: int) -> Any:
        return self.builder.add(
            self.builder.mul(self.stride, v.I64(row)), self.builder.add(self.start, v.I64(v.LANES * vector))
        )

    def _offset(self, key: Any) -> Any:
        """Return where a key's value starts, and ask for the lines that the same key of the next round needs."""
        builder = self.builder
        ahead = builder.add(builder.load(builder.gep(self.ahead, [key])), self.start)
        for d in range(0, v.LANES * self.vectors, self.line):
            v.prefetch(builder, self.values, builder.add(ahead, v.I64(d)))
        return builder.add(builder.load(builder.gep(self.offsets, [key])), self.start)

    def _single(self, key: Any, width: Any) -> list[Any]:
        builder, offset = self.builder, self._offset(key)
        places = [builder.add(offset, v.I64(v.LANES * vector)) for vector in range(self.vectors)]
        return [v.load_floats(builder, self.values, place, self.is_bfloat16, width) for place in places]

    def _pair(self, pair: Any, width: Any) -> list[Any]:
        """Interleave two values, so that one dot product adds both."""
        builder = self.builder
        first = builder.shl(pair, v.I64(1))
        offsets = self._offset(first), self._offset(builder.add(first, v.I64(1)))
        columns: list[Any] = []
        for vector in range(0, self.vectors, 2):
            places = [builder.add(offset, v.I64(v.LANES * vector)) for offset in offsets]
            a, b = (v.load_vector(builder, self.values, place, v.PAIRS, width) for place in places)
            columns += v.interleave(builder, a, b)
        return columns

    def _share(self, row: int, key: Any) -> Any:
        builder = self.builder
        if self.is_dot:
            pairs = builder.bitcast(builder.gep(self.shares, [v.I64(row * ROUND_KEYS)]), v.I32.as_pointer())
            word = builder.load(builder.gep(pairs, [key]), align=2)
            return builder.bitcast(v.spread(builder, word, v.WORDS), v.PAIRS)
        return v.spread(builder, builder.load(builder.gep(self.shares, [builder.add(key, v.I64(row * ROUND_KEYS))])))


@intrinsic
def soften(  # noqa: PLR0917  compiled
    typing_context: Any, scores: Any, shares: Any, groups: Any, count: Any, scale: Any, state: Any
) -> Any:
    """Turn `groups` × 16 scores into unnormalised shares 2**(score · scale − top), zero from `count` on.

    `state` is a row's largest score (top) and sum of shares so far; returns the factor by which the row's sums shrink.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _Softmax(builder, arguments, shares.dtype == types.uint16).emit()

    return types.float32(_float32, shares, _word, _word, types.float32, _float32), generate


class _Softmax:
    """Write the code of `soften`: one pass for the largest score, one for the shares."""

    def __init__(self, builder: Any, arguments: Any, is_bfloat16: bool) -> None:
        self.builder = builder
        self.scores, self.shares, self.groups, self.count, self.scale, self.state = arguments
        self.is_bfloat16 = is_bfloat16

    def emit(self) -> Any:
        builder = self.builder
        old_top = builder.load(self.state)
        total_at = builder.gep(self.state, [v.I64(1)])
        top = v.larger(builder, self._scale_scores(), old_top)
        factor = builder.extract_element(v.exp2(builder, v.spread(builder, builder.fsub(old_top, top))), v.I32(0))
        total = self._share_out(top)
        builder.store(top, self.state)
        builder.store(builder.fadd(builder.fmul(builder.load(total_at), factor), total), total_at)
        return factor

    def _scale_scores(self) -> Any:
        """Scale the scores in place, with those that are none far down, and return the largest."""
        builder = self.builder
        factor, low = v.spread(builder, self.scale), ir.Constant(v.FLOATS, [-1e30] * v.LANES)
        top = cgutils.alloca_once(builder, v.FLOATS)
        builder.store(low, top)
        with cgutils.for_range(builder, self.groups) as group:
            first = builder.mul(group.index, v.I64(v.LANES))
            is_key = v.lanes_below(builder, builder.sub(self.count, first))
            scaled = builder.fmul(v.load_vector(builder, self.scores, first, v.FLOATS), factor)
            scaled = builder.select(is_key, scaled, low)
            v.store_floats(builder, scaled, self.scores, first)
            builder.store(v.larger(builder, scaled, builder.load(top)), top)
        return v.largest_lane(builder, builder.load(top))

    def _share_out(self, top: Any) -> Any:
        builder = self.builder
        spread_top = v.spread(builder, top)
        total = cgutils.alloca_once(builder, v.FLOATS)
        builder.store(v.zeros(), total)
        with cgutils.for_range(builder, self.groups) as group:
            first = builder.mul(group.index, v.I64(v.LANES))
            is_key = v.lanes_below(builder, builder.sub(self.count, first))
            score = v.load_vector(builder, self.scores, first, v.FLOATS)
            share = v.exp2(builder, builder.fsub(score, spread_top))
            share = self._store_share(builder.select(is_key, share, v.zeros()), first)
            builder.store(builder.fadd(builder.load(total), share), total)
        return v.sum_of_lanes(builder, builder.load(total))

    def _store_share(self, share: Any, first: Any) -> Any:
        """Store 16 shares; return them as rounded, so that a row's shares sum to 1."""
        if not self.is_bfloat16:
            v.store_floats(self.builder, share, self.shares, first)
            return share
        halves = v.round_to_bfloat16(self.builder, share)
        address = self.builder.bitcast(self.builder.gep(self.shares, [first]), v.HALVES.as_pointer())
        self.builder.store(halves, address, align=2)
        return v.widen_bfloat16(self.builder, halves)
